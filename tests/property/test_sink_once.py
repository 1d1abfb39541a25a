"""Spark's exactly-once sink writes each row once, wherever tasks and drivers end. HEADRACE_SINK_ROUNDS: more runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from headrace.spark.sink import exactly_once
from tests.fixtures.sink_rounds import (
    SinkRound,
    SteppedCluster,
    SteppedProducer,
    finished,
)

pytestmark = pytest.mark.slow  # not in `make check`

ROUNDS = int(os.environ.get("HEADRACE_SINK_ROUNDS", "3"))


@pytest.mark.timeout(3600)
def test_every_row_is_written_once_in_random_runs() -> None:
    counts: Counter[str] = Counter()
    for seed in range(ROUNDS):
        simulation = SinkRound(seed)
        try:
            simulation.run()
        except AssertionError as error:
            raise AssertionError(f"round {seed}: {error}") from error
        counts += simulation.counts
    assert {"killed tasks", "killed commits", "drivers left", "steps of zombies"} <= set(counts), (
        counts
    )


def sweep(take: Callable[[SinkRound, int], bool]) -> None:
    """Do one run for each step at which an event may happen."""
    step = 0
    while True:
        simulation = SinkRound(step, batches=1)
        if not simulation.run_with(take, step):
            break
        step += 1
    assert step > 5, "there were steps"


def a_rival_commits(simulation: SinkRound, step: int) -> bool:
    """A driver is replaced, and commits when the first task of the new driver has reached a step."""
    rival = [finished(simulation.task(0, partition, 2)) for partition in range(2)]
    task = simulation.task(0, 0, 2)
    for _ in range(step):
        if task.done:
            return False
        task.advance()
    finished(simulation.commit([each.outcome for each in rival]))
    assert finished(task).succeeded
    simulation.complete(0, 2, [task.outcome])
    return True


def a_rival_does_it_all(simulation: SinkRound, step: int) -> bool:
    """A driver that was replaced begins and ends its batch while a task of the next driver is at a step."""
    task = simulation.task(0, 0, 2)
    for _ in range(step):
        if task.done:
            return False
        task.advance()
    rival = [finished(simulation.task(0, partition, 2)) for partition in range(2)]
    finished(simulation.commit([each.outcome for each in rival]))
    simulation.complete(0, 2, [task.outcome] if finished(task).succeeded else [])
    return True


def a_commit_ends(simulation: SinkRound, step: int) -> bool:
    """A driver is killed during its commit, and the batch is repeated."""
    tasks = [finished(simulation.task(0, partition, 2)) for partition in range(2)]
    commit = simulation.commit([each.outcome for each in tasks])
    for _ in range(step):
        if commit.done:
            return False
        commit.advance()
    if not commit.done:
        commit.advance(kill=True)
    simulation.complete(0, 2, [])
    return True


def a_rival_divides_otherwise(simulation: SinkRound, step: int) -> bool:
    """A driver is replaced by a driver with fewer partitions, and both commit; one of the two is refused."""
    rival = [finished(simulation.task(0, partition, 3)) for partition in range(3)]
    tasks = [finished(simulation.task(0, partition, 1)) for partition in range(1)]
    old, new = (simulation.commit([each.outcome for each in both]) for both in (rival, tasks))
    for _ in range(step):
        if old.done:
            return False
        old.advance()
    finished(new)
    finished(old)
    simulation.complete(0, 1 if new.succeeded else 3, [])
    return True


def a_commit_ends_for_long(simulation: SinkRound, step: int) -> bool:
    """A driver is killed during its commit, and started again when all committed offsets have expired."""
    tasks = [finished(simulation.task(0, partition, 2)) for partition in range(2)]
    commit = simulation.commit([each.outcome for each in tasks])
    for _ in range(step):
        if commit.done:
            return False
        commit.advance()
    if not commit.done:
        commit.advance(kill=True)
    simulation.rest()
    simulation.complete(0, 2, [])
    assert step or not simulation.counts["outcome unknown"], "the batch was not claimed"
    return True


EVENTS = [
    a_rival_commits,
    a_rival_does_it_all,
    a_commit_ends,
    a_rival_divides_otherwise,
    a_commit_ends_for_long,
]


@pytest.mark.parametrize("take", EVENTS, ids=lambda take: take.__name__)
def test_every_row_is_written_once_despite_a_replaced_or_killed_driver(
    take: Callable[[SinkRound, int], bool],
) -> None:
    sweep(take)


def no_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once, "_is_divided_as", lambda *_: True)


def no_marker(patch: pytest.MonkeyPatch) -> None:
    whole = SteppedCluster.marker
    patch.setattr(
        SteppedCluster,
        "marker",
        lambda self, name: whole(self, name) if name.endswith("-claim") else None,
    )


def marker_before_the_take_over(patch: pytest.MonkeyPatch) -> None:
    """The transactional id is taken over when the transaction begins, after the marker was read."""
    patch.setattr(SteppedProducer, "init_transactions", lambda _: None)


def no_kept_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SteppedCluster, "kept_claim", lambda *_: None)


def trust_in_markers(patch: pytest.MonkeyPatch) -> None:
    """A marker counts, however old it is."""
    patch.setattr(exactly_once, "_check_known", lambda *_, **__: None)


@pytest.mark.parametrize(
    ("break_it", "take"),
    [
        (no_claim, a_rival_divides_otherwise),
        (no_marker, a_commit_ends),
        (marker_before_the_take_over, a_rival_does_it_all),
        (no_kept_claim, a_commit_ends_for_long),
        (trust_in_markers, a_commit_ends_for_long),
    ],
    ids=lambda each: each.__name__,
)
def test_the_sweep_finds_a_missing_part_of_the_sink_protocol(
    break_it: Callable[[pytest.MonkeyPatch], None],
    take: Callable[[SinkRound, int], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_it(monkeypatch)

    with pytest.raises(AssertionError, match="too much"):
        sweep(take)
