"""The files of docs/guides/testing-kinesis.md form a project whose tests pass; its commands and tables are right."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from aiobotocore.session import get_session

from headrace.testing.kinesis import Limits, faults
from tests.fixtures.kafka import free_ports

pytest_plugins = "pytester"

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "testing-kinesis.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
FAULTS = Path(str(faults.__file__)).read_text()
FILES = {block.split("\n", 1)[0].removeprefix("# "): block for block in BLOCKS}


def test_every_block_names_its_own_file() -> None:
    assert len(FILES) == len(BLOCKS)
    assert all(name.endswith(".py") for name in FILES)


def test_the_tests_of_the_page_pass(pytester: pytest.Pytester) -> None:
    for name, text in FILES.items():
        (pytester.path / name).write_text(text)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=200)
    wanted = sum(text.count("\ndef test_") for text in FILES.values())
    result.assert_outcomes(passed=wanted)


def test_the_page_names_the_fixtures_of_the_plugin() -> None:
    plugin = vars(__import__("headrace.testing.plugin", fromlist=["plugin"]))
    fixtures = set(re.findall(r"^\| `(headrace_\w+)`", PAGE, flags=re.MULTILINE))
    assert fixtures == {"headrace_aws", "headrace_kinesis", "headrace_stream"}
    assert fixtures <= set(plugin)


def test_the_page_has_the_default_limits() -> None:
    limits = Limits()
    mib = 1 << 20
    assert (
        f"{limits.reads_per_s} calls and {limits.read_bytes_per_s // mib} MiB in any second" in PAGE
    )
    assert f"{limits.get_records:,} records and {limits.get_bytes // mib} MiB a call" in PAGE
    assert (
        f"{limits.put_records_per_s:,} records and {limits.put_bytes_per_s // mib} MiB in any"
        in PAGE
    )
    assert f"{limits.put_request_records} records, {limits.put_request_bytes // mib} MiB" in PAGE
    assert limits.iterator_ttl_ms == limits.token_ttl_ms == limits.subscription_ms == 300_000


def test_the_page_names_every_fault() -> None:
    actions = re.findall(r"^def ([a-z]\w*)\(", FAULTS, flags=re.MULTILINE)
    assert len(actions) == 6
    assert all(f"| `{name}(" in PAGE for name in actions)


def test_the_process_serves_clients_with_the_variables_of_the_page() -> None:
    serve, export = re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL)
    port = str(free_ports(1)[0])
    command = [sys.executable, *shlex.split(serve.replace("4567", port))[1:]]
    names = dict(pair.split("=", 1) for pair in export.replace("4567", port).split()[1:])

    async def count_shards() -> int:
        async with get_session().create_client("kinesis") as client:
            found = await client.describe_stream_summary(StreamName="orders")
            return int(found["StreamDescriptionSummary"]["OpenShardCount"])

    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as fake,
        patch.dict(os.environ, names),
    ):
        assert fake.stdout is not None
        assert fake.stdout.readline() == f"{names['AWS_ENDPOINT_URL']}\n"
        assert asyncio.run(count_shards()) == 4
        fake.communicate(timeout=30)  # closes the standard input
    assert fake.returncode == 0
