"""The commands of docs/reference/kinesis-leases.md and of docs/start/coming-from-kcl.md work on groups of the fakes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiobotocore.session import get_session

import headrace
from headrace.kinesis import kinesis
from headrace.testing import FakeAws
from tests.docs.console import run_shell, steps, users_environment

DOCS = Path(__file__).resolve().parents[2] / "docs"
LEASES = (DOCS / "reference" / "kinesis-leases.md").read_text()
COMING = (DOCS / "start" / "coming-from-kcl.md").read_text()
COMMANDS = [step for step in steps(LEASES) if step.kind == "console"]
REGION = "eu-central-1"
APPLICATION = "my-application"
"""The name of the library's application, and of its table, on both pages."""
SHARD = "shardId-000000000000"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    with FakeAws(region=REGION) as aws:
        for name, value in (
            ("AWS_ENDPOINT_URL", aws.endpoint_url),
            ("AWS_REGION", REGION),
            ("AWS_DEFAULT_REGION", REGION),
            ("AWS_ACCESS_KEY_ID", "fake"),
            ("AWS_SECRET_ACCESS_KEY", "fake"),
        ):
            monkeypatch.setenv(name, value)
        aws.kinesis.create_stream("orders", 1)
        yield aws


def output(command: str, directory: Path) -> str:
    done = run_shell(command, directory, users_environment())
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def read_everything(aws: FakeAws) -> None:
    """Let the group billing finish one record, and stop."""
    app = headrace.App(group="billing")

    @app.worker(kinesis("orders", region=REGION))
    async def bill(value: bytes) -> None:
        pass

    aws.kinesis.put("orders", b"one", "alice")
    with app.test() as trial:
        trial.wait_idle(30)


async def create_application(checkpoint: str) -> None:
    """Create the lease table of an application of the Kinesis Client Library that has stopped."""
    async with get_session().create_client("dynamodb", region_name=REGION) as client:
        await client.create_table(
            TableName=APPLICATION,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        row = {
            "leaseKey": {"S": SHARD},
            "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": "0"},
            "leaseCounter": {"N": "17"},
        }
        await client.put_item(TableName=APPLICATION, Item=row)


def test_the_commands_show_the_group_with_the_columns_of_the_page_and_move_it(
    aws: FakeAws, tmp_path: Path
) -> None:
    groups, describe, reset, *_ = COMMANDS
    read_everything(aws)
    for step in (groups, describe):
        lines = output(step.text, tmp_path).splitlines()
        for heading in (line for line in step.shown if line.isupper() or line.startswith("GROUP")):
            assert heading.split() in [line.split() for line in lines], step.text
    assert "billing" in output(groups.text, tmp_path)
    output(f"{reset.text} --yes --wait 0.1", tmp_path)
    assert "AT_TIMESTAMP" in output(f"{describe.text} --no-lag", tmp_path)


def test_the_import_of_both_pages_continues_at_the_checkpoint_of_the_library(
    aws: FakeAws, tmp_path: Path
) -> None:
    put = aws.kinesis.put("orders", b"one", "alice")
    asyncio.run(create_application(put.sequence_number))
    *_, tried, done = (step.text for step in COMMANDS)
    (block,) = re.findall(r"```text\n(.*?)```", COMING, re.DOTALL)
    assert block.splitlines()[:2] == [tried, done]
    assert put.sequence_number in output(f"{tried} --wait 0.1", tmp_path)
    assert aws.dynamodb.tables() == [APPLICATION]
    output(f"{done} --yes --wait 0.1", tmp_path)
    assert put.sequence_number in output("headrace kinesis describe billing --no-lag", tmp_path)
