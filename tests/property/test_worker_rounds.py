"""Lives of workers in virtual time (a few of them here; HEADRACE_WORKER_ROUNDS=1000 tells more)."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

import pytest

from headrace.errors import HeadraceError
from headrace.workers.outlet import Outlet
from headrace.workers.scheduler import Scheduler
from headrace.workers.slots import Slots
from headrace.workers.worker import Worker
from tests.fixtures.worker_rounds import WorkerRound

ROUNDS = int(os.environ.get("HEADRACE_WORKER_ROUNDS", "8"))
KINDS = [("partition", False), ("key", False), ("none", False), ("partition", True)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("ordering", "batches"), KINDS)
def test_nothing_is_lost_committed_early_or_out_of_order_whatever_happens(
    ordering: str,
    batches: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(KINDS.index((ordering, batches)), ROUNDS, len(KINDS)):
        story = WorkerRound(seed, ordering, batches=batches)
        try:
            story.run()
        except AssertionError as error:
            raise AssertionError(
                f"round {seed} of {ordering}, batches={batches}: {error}"
            ) from error
        counts += story.counts
    # A story in which nothing happened proves nothing.
    assert {"commits", "letters", "flaky", "stops", "cancelled"} <= set(counts), counts


def first_failure(seeds: range) -> str:
    for seed in seeds:
        ordering, batches = KINDS[seed % 2]
        try:
            WorkerRound(seed, ordering, batches=batches).run()
        except AssertionError as error:
            return str(error)
    return ""


async def nothing(*_: Any) -> None:
    """Take no time."""


write = Outlet.write


async def write_at_best(self: Outlet, *arguments: Any, **options: Any) -> None:
    with suppress(HeadraceError):
        await write(self, *arguments, **options)


FAULTS: dict[str, tuple[str, list[Any]]] = {
    "gaps are committed": (
        "is open",
        [
            patch.object(
                Scheduler,
                "positions",
                lambda self: {name: each.next_offset for name, each in self._partitions.items()},
            )
        ],
    ),
    "a dead letter that was not written counts": (
        "is open",
        [patch.object(Outlet, "write", write_at_best)],
    ),
    "a cancelled handler counts": (
        "is open",
        [patch.object(Scheduler, "abandon", Scheduler.finish)],
    ),
    "there is no order": (
        "before",
        [patch.object(Scheduler, "_lane_key", lambda self, record: None)],
    ),
    "partitions go while handlers run": (
        "share",
        [patch.object(Worker, "_drained", nothing), patch.object(Slots, "let_go", nothing)],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_rounds_find_a_fault(fault: str) -> None:
    told, patches = FAULTS[fault]
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        assert told in first_failure(range(40)), f"nobody noticed that {fault}"


def test_one_seed_tells_one_story() -> None:
    stories = []
    for _ in range(2):
        story = WorkerRound(5, "key")
        story.run()
        stories.append((story.counts, story.finished, story.world.now_ms()))
    assert stories[0] == stories[1]
