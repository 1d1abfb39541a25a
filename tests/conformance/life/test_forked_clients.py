"""A client that was made before a fork: calls in the child raise, and the parent continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.life.conftest import run_program
from tests.fixtures.processes import ServerProcess

PLACES = ("tcp", "memory", "disk")
KINDS = ("producer", "consumer", "admin", "batches")
SUBJECTS = [f"{place}-{kind}" for place in PLACES for kind in KINDS] + [
    "memory-broker",
    "disk-broker",
]
ENDINGS = ("at-once", "exit", "collected", "untouched")
"""The ways in which a child ends: by os._exit, by sys.exit, after the client is collected, or without using it."""


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_child_is_refused_and_the_parent_works_on(
    server: ServerProcess, tmp_path: Path, subject: str, ending: str
) -> None:
    ended = run_program("forked_client", server.bootstrap, subject, ending, str(tmp_path / "data"))
    assert (ended.code, ended.errors) == (0, ""), ended
    assert ended.output.endswith("parent went on\n"), ended
    assert ": done" not in ended.output, ended
    if ending != "untouched":
        assert ": refused" in ended.output, ended
        assert "child closed" in ended.output, ended


ASYNC_SUBJECTS = [
    f"{place}-{kind}" for place in ("tcp", "memory") for kind in ("producer", "consumer", "admin")
] + ["kinesis-producer", "kinesis-consumer", "kinesis-member", "kinesis-blocking", "sqlite-leases"]


@pytest.mark.parametrize("subject", ASYNC_SUBJECTS)
def test_a_child_is_refused_by_clients_of_asyncio_and_of_kinesis(
    server: ServerProcess, tmp_path: Path, subject: str
) -> None:
    ended = run_program("forked_async_client", server.bootstrap, subject, str(tmp_path))
    assert (ended.code, ended.errors) == (0, ""), ended
    assert ended.output.endswith("parent went on\n"), ended
    assert ": refused" in ended.output, ended
    assert ": done" not in ended.output, ended
    assert "child closed" in ended.output, ended


@pytest.mark.parametrize(
    ("shape", "method"),
    [
        (shape, method)
        for shape in ("executor", "pool")
        for method in ("fork", "forkserver", "spawn")
    ]
    + [("server", "fork")],
)
def test_pools_of_processes_write_with_producers_of_their_own(
    server: ServerProcess, shape: str, method: str
) -> None:
    ended = run_program("pools", server.bootstrap, shape, method)
    assert (ended.code, ended.errors) == (0, ""), ended
    assert ended.output == "all acknowledged records are in the log, once\n"


def test_a_signal_to_a_forked_child_of_an_app_does_not_stop_the_app(server: ServerProcess) -> None:
    ended = run_program("app_that_forks", server.bootstrap)
    assert ended.code == 0, ended
    assert ended.output.splitlines() == [
        f"handled {value!r} child -15" for value in (b"1", b"2", b"3")
    ]
