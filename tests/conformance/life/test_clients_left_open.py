"""Programs that end, or drop their clients, without closing them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace
from headrace.types import TopicPartition
from tests.conformance.life.conftest import PROGRAMS, ROOT, run_program
from tests.fixtures.processes import ServerProcess, running_server

EXIT_LIMIT_S = 30
"""The end of a program takes some 5 s at most; the machine may be busy."""


def left_open(server: ServerProcess, where: object, what: str) -> str:
    began = time.monotonic()
    ended = run_program("left_open", server.bootstrap, str(where), what)
    assert ended.code == 0, ended
    assert ended.output.endswith("end\n"), ended
    assert time.monotonic() - began < EXIT_LIMIT_S
    if what != "exit_of_kinesis":  # asyncio reports generators that the program left open
        assert "Traceback" not in ended.errors, ended
    return ended.output + ended.errors


def count_records(target: object, topic: str) -> int:
    with headrace.Consumer(target, enable_auto_commit=False) as consumer:  # type: ignore[arg-type]  # either kind
        here = TopicPartition(topic, 0)
        return consumer.end_offsets([here])[here]


def test_records_that_wait_at_the_end_of_a_program_are_delivered(
    server: ServerProcess, tmp_path: Path
) -> None:
    text = left_open(server, "tcp", "exit_with_records")
    assert "its last 1000 records were delivered at the end of the program" in text
    assert count_records(server.bootstrap, text.splitlines()[0]) == 1000


def test_records_that_wait_at_the_end_of_a_program_reach_its_own_broker(
    server: ServerProcess, tmp_path: Path
) -> None:
    text = left_open(server, tmp_path / "data", "exit_with_records")
    assert "its last 1000 records were delivered at the end of the program" in text
    with headrace.Broker(data=tmp_path / "data") as broker:
        assert count_records(broker, text.splitlines()[0]) == 1000


def test_lost_records_are_counted_at_the_end_of_a_program_which_ends_in_time(
    tmp_path: Path,
) -> None:
    with (
        running_server(tmp_path, memory=True) as server,
        subprocess.Popen(
            [
                sys.executable,
                str(PROGRAMS / "left_open.py"),
                server.bootstrap,
                "tcp",
                "exit_with_lost_records",
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program,
    ):
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        server.kill()
        began = time.monotonic()
        _, errors = program.communicate("go on\n", timeout=EXIT_LIMIT_S)
        assert time.monotonic() - began < EXIT_LIMIT_S
        assert program.returncode == 0
        assert "1000 of its last 1000 records are lost" in errors, errors


@pytest.mark.parametrize("what", ["exit_of_asyncio", "exit_of_kinesis"])
def test_lost_records_of_asyncio_are_counted(server: ServerProcess, what: str) -> None:
    text = left_open(server, "asyncio", what)
    assert "1000 of its last 1000 records are lost: its event loop has ended" in text


def test_the_blocking_producer_of_kinesis_does_not_hold_up_the_end(server: ServerProcess) -> None:
    text = left_open(server, "blocking", "exit_of_kinesis")
    assert "1000 of its last 1000 records are lost: they were not delivered within 5 s" in text


@pytest.mark.parametrize(
    ("what", "kinds"),
    [
        ("drop_producers", {"Producer": 30}),
        ("drop_consumers", {"Consumer": 1}),
        ("drop_asyncio", {"Admin": 1, "Producer": 1, "Consumer": 1}),
    ],
)
@pytest.mark.parametrize("where", ["tcp", "here"])
def test_a_client_that_is_dropped_warns_and_closes_itself(
    server: ServerProcess, tmp_path: Path, where: str, what: str, kinds: dict[str, int]
) -> None:
    text = left_open(server, "tcp" if where == "tcp" else tmp_path / "data", what)
    for kind, count in kinds.items():
        warning = f"ResourceWarning: a {kind} of Headrace was dropped without being closed: call its close(), or use"
        assert text.count(warning) == count, text


def test_a_broker_that_is_dropped_warns_and_closes_itself(
    server: ServerProcess, tmp_path: Path
) -> None:
    text = left_open(server, tmp_path / "data", "drop_brokers")
    assert (
        text.count("ResourceWarning: a Broker of Headrace was dropped without being closed") == 1
    ), text
