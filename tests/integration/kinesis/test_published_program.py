"""The published program runs on the class of its shape: twice one after another, with both kinds of loggers, and ^C."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.core.lease.lease import Lease
from headrace.core.lease.names import owner_of
from headrace.kinesis.leases.opening import open_store
from headrace.testing.kinesis import FakeAws
from tests.integration.kinesis.group.apps import fake_aws, settings_of

PROGRAM = Path(__file__).parent / "programs/printer.py"
GROUP = "printer_group_a"
TIMEOUT_S = 30


@contextmanager
def printer(aws: FakeAws, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": aws.endpoint_url,
        "AWS_REGION": aws.region,
        "AWS_ACCESS_KEY_ID": "fake",
        "AWS_SECRET_ACCESS_KEY": "fake",
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def printed(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a program by ^C; return its output from then on and its whole standard error."""
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGINT, errors
    for trouble in ("never awaited", "was destroyed", "Unclosed", "Error:"):
        assert trouble not in errors, errors
    return output, errors


def id_of(line: str) -> tuple[str, str]:
    shard, _, number = re.findall(r"Message\(id='([^']+)'", line)[0].partition(":")
    return shard, number


def leases(aws: FakeAws) -> list[Lease]:
    async def read() -> list[Lease]:
        store = open_store(f"dynamodb://{GROUP}", settings_of(aws))
        await store.open()
        try:
            [(group, stream)] = await store.streams()
            assert group == GROUP
            return await store.leases(group, stream)
        finally:
            await store.close()

    return asyncio.run(read())


def described(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "fake")
    place = ["--leases", f"dynamodb://{GROUP}", "--region", aws.region]
    arguments = ["kinesis", "describe", GROUP, *place, "--endpoint-url", aws.endpoint_url]
    done: Any = CliRunner().invoke(main, [*arguments, "--no-lag"])
    assert done.exit_code == 0, done.output
    return str(done.output)


def test_the_published_program_runs_and_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_aws() as aws:
        aws.kinesis.create_stream("messages", 2)
        for number in range(20):
            aws.kinesis.put("messages", b"%d" % number, f"key-{number}")

        with printer(aws) as process:
            lines = printed(process, 20)
            owners = {lease.owner for lease in leases(aws)}
            assert {owner_of(owner or "") for owner in owners} == {f"me-{process.pid}"}
            text = described(aws, monkeypatch)
            assert len(re.findall(rf"owned +me-{process.pid} ", text)) == 2, text
            last = dict(map(id_of, lines))
            while {each.key.shard: each.checkpoint.position for each in leases(aws)} != last:
                assert process.poll() is None
            left, errors = interrupted(process)
        payloads = sorted(int(re.findall(r"payload=b'(\d+)'", line)[0]) for line in lines)
        assert (payloads, left) == (list(range(20)), "")
        form = r"Message\(id='shardId-0{11}[01]:\d{56}', .* stream='messages', .* ts_server=datetime\.datetime\(20"
        assert all(re.match(form, line) for line in lines), lines
        assert len(re.findall("INFO:printer:shard acquired table=printer_group_a ", errors)) == 2
        assert len(re.findall("INFO:printer:shard released", errors)) == 2
        assert [lease.owner for lease in leases(aws)] == [None, None], "others need not wait"

        aws.kinesis.put("messages", b"20", "key")
        with printer(aws, "structlog") as process:
            [line] = printed(process, 1)
            left, errors = interrupted(process)
        assert ("payload=b'20'" in line, left) == (True, ""), "nothing comes twice"
        assert "log shard acquired {'table': 'printer_group_a', 'stream': 'messages'," in errors
