"""Random runs of a group of real processes: three here, fifty with HEADRACE_PROCESS_ROUNDS=50."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.group_rounds.process_run import LedgerChecker, Line, ProcessRun
from tests.fixtures.processes import ServerProcess, running_server

ROUNDS = int(os.environ.get("HEADRACE_PROCESS_ROUNDS", "3"))
PACE_S = 0.45  # between two lines: after four, a member has slept longer than a session; after three, not
ASSIGNORS = ["equal", "range", "server-side", "cooperative-sticky"]
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "group.consumer.min.session.timeout.ms=2000",
    "group.consumer.min.heartbeat.interval.ms=300",
    "group.consumer.session.timeout.ms=2000",
    "group.consumer.heartbeat.interval.ms=300",
    "offsets.topic.num.partitions=2",
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_faults_of_processes_lose_no_records(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    arguments = [f"--config={setting}" for setting in SETTINGS]
    with running_server(tmp_path, *arguments) as server:
        for seed in range(ROUNDS):
            run = ProcessRun(server, tmp_path / str(seed), seed, ASSIGNORS[seed % len(ASSIGNORS)])
            try:
                run.run()
            except AssertionError as error:
                raise AssertionError(f"round {seed} ({run.assignor}): {error}") from error
            counts += run.counts
    print(dict(counts))
    assert {"kills", "stops", "leaves", "commit"} <= set(counts), counts
    if ROUNDS >= 50:
        assert {"crashes", "restarts", "slow", "fenced"} <= set(counts), counts


def checked(*lines: tuple[str, str, int, str], published: int = 1) -> LedgerChecker:
    """Return the checker after ledgers that are made up: (member, event, generation, words)."""
    run = ProcessRun(ServerProcess(None, log_path=Path(os.devnull)), Path("/nowhere"), 0, "equal")
    run.published[0] = published
    written = [
        Line(moment * PACE_S, member, what, generation, tuple(words.split()))
        for moment, (member, what, generation, words) in enumerate(lines)
    ]
    run.lines = lambda: written  # type: ignore[method-assign]  # in place of reading files
    checker = LedgerChecker(run)
    checker.checker()
    return checker


GOOD = [("a", "take", 1, "0"), ("a", "handle", 1, "0 0 0"), ("a", "done", 1, "0 0")]
COMMITTED = [*GOOD, ("a", "commit", 1, "0 1")]
TOGETHER = [
    ("a", "take", 1, "0"),
    ("a", "poll", 1, ""),
    ("a", "handle", 1, "0 0 0"),
    ("b", "take", 2, "0"),
    ("b", "handle", 2, "0 0 0"),
    ("a", "done", 1, "0 0"),
]
FAULTS = {
    "lost": GOOD[:1],
    "in one generation": [*GOOD, ("b", "take", 1, "0")],
    "is next": [*GOOD, ("a", "handle", 1, "0 2 2")],
    "without being assigned": GOOD[1:],
    "is committed": [*COMMITTED, ("b", "take", 2, "0"), ("b", "handle", 2, "0 0 0")],
    "together": TOGETHER,
    "goes back": [*COMMITTED, ("b", "commit", 1, "0 0")],
}


def test_the_checker_accepts_a_right_ledger() -> None:
    again = [("b", "take", 2, "0"), ("b", "handle", 2, "0 0 0")]
    assert checked(*GOOD, ("a", "fenced", 1, "X"), *again).run.counts["overlaps"] == 0
    slept = [*TOGETHER[:4], ("b", "poll", 2, ""), *TOGETHER[4:]]
    assert checked(*slept).run.counts["overlaps"] == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_finds(fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        checked(*FAULTS[fault])
