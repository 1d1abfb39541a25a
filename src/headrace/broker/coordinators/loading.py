"""Loads the partitions of a coordinator in steps, while the broker handles requests.

A broker coordinates a partition of `__consumer_offsets` or `__transaction_state` while it leads the partition:

1. The role begins: `ShardedCoordinator.begin`. Requests get COORDINATOR_LOAD_IN_PROGRESS from now on.
2. `Steps` loads the partition, in turn with the requests that are handled in steps. Then requests are handled.
3. The role ends: `ShardedCoordinator.unload`. Requests that wait, and all later ones, get NOT_COORDINATOR.

A role that ends while its partition is being loaded ends the load. A role that begins again loads from the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeVar

from headrace.broker.context import LatestTime
from headrace.broker.session import Session
from headrace.broker.waiting.steps import STEP_COST, Steps, Work, logged
from headrace.core.coordinator.sharded import ShardedCoordinator
from headrace.ports import Journal

T = TypeVar("T")

PAUSE_COST: Final = STEP_COST // 3
"""The cost of the work between two pauses of a load, so that a step ends after some four milliseconds."""
LOADED_AT_START: Final = 800 * PAUSE_COST
"""The cost of what the broker loads before it handles requests: about a second. It loads the rest in steps."""


class Loading:
    """Loads the partitions of one coordinator."""

    __slots__ = ("_coordinator", "_journal", "_refuse", "_steps", "_time")

    def __init__(
        self,
        coordinator: ShardedCoordinator[Any],
        steps: Steps,
        time: LatestTime,
        refuse: Callable[[int, Exception], object],
        journal: Journal,
    ) -> None:
        """Begin without partitions.

        Args:
            coordinator: The coordinator.
            steps: Runs the steps.
            time: The time of the latest call of the broker.
            refuse: Called with the number of a partition that cannot be loaded, and the error.
            journal: Receives the log events.
        """
        self._coordinator = coordinator
        self._steps = steps
        self._time = time
        self._refuse = refuse
        self._journal = journal

    def now_ms(self) -> int:
        """Return the time of the step."""
        return self._time.now_ms

    def run(self, work: Work[None]) -> None:
        """Run the work of a load: one step now, the others in turn with requests."""
        work = logged(work, "load of a coordinator", self._journal)
        self._steps.run(work, Session(is_local=True), finishes=True)

    def begin(self, partitions: Iterable[int]) -> None:
        """Begin to coordinate partitions, which are not loaded yet."""
        for partition in partitions:
            self._coordinator.begin(partition)

    def end(self, partition: int) -> None:
        """Stop coordinating a partition at once, and free its state in steps."""
        self.run(paced(self._coordinator.unload_in_steps(partition)))

    def replay(self, partition: int) -> Work[None]:
        """Replay the records of a partition."""
        yield from self._paced(partition, self._coordinator.replay_in_steps(partition))

    def activate(self, partition: int) -> Work[None]:
        """Begin to handle the requests of a partition whose records are replayed."""
        yield from self._paced(
            partition, self._coordinator.activate_in_steps(partition, self.now_ms)
        )

    def _paced(self, partition: int, load: Generator[None, None, None]) -> Work[None]:
        try:
            yield from paced(load)
        except Exception as error:  # noqa: BLE001 - the other partitions are loaded all the same
            self._coordinator.unload(partition)
            self._refuse(partition, error)


def paced(work: Generator[None, None, T]) -> Work[T]:
    """Do the work of a core in steps. The core pauses after about each millisecond."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        yield PAUSE_COST


def load_at_start(loading: Loading, *works: Work[None]) -> None:
    """Do some works alternately: at most `LOADED_AT_START` at once, and the rest in steps."""
    pending, left = deque(works), LOADED_AT_START
    while pending and left > 0:
        work = pending.popleft()
        try:
            cost = next(work)
        except StopIteration:
            continue
        assert isinstance(cost, int), "a load waits for nothing"
        left -= cost
        pending.append(work)
    for work in pending:
        loading.run(work)
