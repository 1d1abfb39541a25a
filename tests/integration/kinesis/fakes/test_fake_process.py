"""`python -m headrace.testing.kinesis`: the fakes as a process."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.kinesis.fakes.peers import client_of

COMMAND = [sys.executable, "-m", "headrace.testing.kinesis"]


def test_the_fake_process_serves_until_its_input_ends() -> None:
    async def work(url: str) -> list[Any]:
        async with client_of("kinesis", url) as client:
            shards = (await client.list_shards(StreamName="orders"))["Shards"]
            asked = [await client.describe_stream_summary(StreamName="billing") for _ in range(30)]
        return [len(shards), asked[-1]["StreamDescriptionSummary"]["OpenShardCount"]]

    arguments = ["--stream", "orders:3", "--stream", "billing", "--unthrottled"]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        url = process.stdout.readline().strip()
        assert asyncio.run(work(url)) == [3, 1]
        process.stdin.close()
        assert process.wait(30) == 0


def test_the_fake_process_runs_as_a_background_job_until_a_signal() -> None:
    with subprocess.Popen(
        COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().strip().rpartition("/")[2].partition(":")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        socket.create_connection((host, int(port)), timeout=30).close()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--stream", "orders:many"], "is not a number of shards"),
        (["--stream", "or ders"], "ValidationException"),
        (["--shard-end", "never"], "--shard-end"),
    ],
)
def test_the_fake_process_explains_wrong_arguments(arguments: list[str], complaint: str) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0, complaint in done.stderr) == (True, True), done.stderr


def test_the_fake_process_explains_that_a_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, "--port", port],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, "address already in use" in done.stderr) == (1, True), done.stderr
