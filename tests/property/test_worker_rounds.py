"""Random runs of workers in virtual time: a few here, more with HEADRACE_WORKER_ROUNDS=1000."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest

from headrace.clients.consumer.group_metadata import GroupMetadata
from headrace.clients.consumer.member import ConsumerMember
from headrace.errors import FatalTransactionError, HeadraceError
from headrace.workers.committing.transactor import Transactor
from headrace.workers.core.delivery import AtLeastOnce
from headrace.workers.core.scheduler import Scheduler
from headrace.workers.output.outlet import Outlet
from headrace.workers.running.job_runner import JobRunner
from tests.fixtures.exactly_once_rounds import ExactlyOnceRound
from tests.fixtures.worker_rounds import WorkerRound

ROUNDS = int(os.environ.get("HEADRACE_WORKER_ROUNDS", "8"))
KINDS = [("partition", False), ("key", False), ("none", False), ("partition", True)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("ordering", "batches"),
    [
        KINDS[0],
        pytest.param(*KINDS[1], marks=pytest.mark.slow),
        pytest.param(*KINDS[2], marks=pytest.mark.slow),
        KINDS[3],
    ],
)
def test_no_record_is_lost_committed_early_or_reordered_in_random_runs(
    ordering: str,
    batches: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(KINDS.index((ordering, batches)), ROUNDS, len(KINDS)):
        simulation = WorkerRound(seed, ordering, batches=batches)
        try:
            simulation.run()
        except AssertionError as error:
            raise AssertionError(
                f"round {seed} of {ordering}, batches={batches}: {error}"
            ) from error
        counts += simulation.counts
    # Runs without rebalances and failures would prove nothing.
    assert {"commits", "letters", "flaky", "stops", "cancelled"} <= set(counts), counts


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_exactly_once_delivery_writes_each_result_once_in_random_runs() -> None:
    counts: Counter[str] = Counter()
    for seed in range(0, ROUNDS, 8):
        ordering, batches = KINDS[seed // 8 % len(KINDS)]
        simulation = ExactlyOnceRound(seed, ordering, batches=batches)
        try:
            simulation.run()
        except AssertionError as error:
            raise AssertionError(
                f"round {seed} of {ordering}, batches={batches}: {error}"
            ) from error
        counts += simulation.counts
    assert {"commits", "letters", "flaky"} <= set(counts), counts


def first_failure(seeds: range, kind: type[WorkerRound] = WorkerRound) -> str:
    for seed in seeds:
        ordering, batches = KINDS[seed % 2]
        try:
            kind(seed, ordering, batches=batches).run()
        except AssertionError as error:
            return str(error)
    return ""


async def nothing(*_: Any) -> None:
    """Process a record in no time."""


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
        [
            patch.object(AtLeastOnce, "is_drained", lambda *_: True),
            patch.object(JobRunner, "let_go", nothing),
        ],
    ),
}


@pytest.mark.slow  # not in `make check`
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rounds_find_a_fault(fault: str) -> None:
    told, patches = FAULTS[fault]
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        assert told in first_failure(range(40)), f"no round found the fault: {fault}"


NO_PRODUCER = GroupMetadata("billing", -1, "", None)


async def take_for_lost(self: Transactor) -> Any:
    """Repeat a transaction with a new producer, although it may be committed already."""
    if self._doubt is not None:
        self._doubt = None
        await self._renew(FatalTransactionError("it is not asked"))
    return {}


async def take_for_committed(self: Transactor) -> Any:
    """Treat an unconfirmed commit as committed."""
    offsets, self._doubt = self._doubt or {}, None
    if offsets:
        await self._renew(FatalTransactionError("it is not asked"))
    self._committed(offsets)
    return offsets


@contextmanager
def both(*patches: Any) -> Iterator[None]:
    """Apply two faults together."""
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


EXACTLY_ONCE_FAULTS: dict[str, tuple[int, str, Any]] = {
    "a commit in doubt is made again": (
        17,
        "again",
        patch.object(Transactor, "settle", take_for_lost),
    ),
    "a commit in doubt is believed": (
        5,
        "is open",
        patch.object(Transactor, "settle", take_for_committed),
    ),
    "what is kept of a partition that goes is written": (
        14,
        "again",
        patch.object(Transactor, "drop", lambda self, partitions: None),
    ),
    "positions run ahead of results": (
        0,
        "is open",
        patch.object(Transactor, "keep", lambda self, job, box: None),
    ),
    # Either defence is enough: a member that stops in time has nothing to commit when others own its partitions.
    "commits do not name the member, and it does not watch its session": (
        3,
        "",
        both(
            patch("headrace.workers.committing.transactor.member_of", lambda consumer: NO_PRODUCER),
            patch.object(ConsumerMember, "_session_ended", lambda self: None),
        ),
    ),
}


# The first seed is one that finds the fault soon.
@pytest.mark.slow  # not in `make check`
@pytest.mark.parametrize("fault", EXACTLY_ONCE_FAULTS)
def test_the_rounds_find_broken_exactly_once_delivery(fault: str) -> None:
    first, told, how = EXACTLY_ONCE_FAULTS[fault]
    with how:
        found = first_failure(range(first, first + 30), ExactlyOnceRound)
    assert found, f"no round found the fault: {fault}"
    assert told in found, found


@pytest.mark.slow
def test_a_seed_determines_its_run() -> None:
    simulations = []
    for _ in range(2):
        simulation = WorkerRound(5, "key")
        simulation.run()
        simulations.append((simulation.counts, simulation.finished, simulation.world.now_ms()))
    assert simulations[0] == simulations[1]
