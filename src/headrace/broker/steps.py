"""Requests whose answer takes longer than one turn of the event loop, worked on in steps.

The work is a generator that yields how much it has done, as bytes that are decompressed. Its first step is done at
once, and most requests need no other. The rest is done by `tick`, a step for each, in turn; the broker is called in
between, so the work keeps nothing that another request may change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, Final, TypeVar

from headrace.broker.delayed import Purgatory
from headrace.core.deferred import Deferred

STEP_COST: Final = 4 << 20
"""After how much work a step ends: some 15 milliseconds, and the last piece of work."""
_CROWDED: Final = 16
"""By which the first step of a request is smaller while others wait for theirs: requests may come by the hundred."""
T = TypeVar("T")

Work = Generator[int, None, T]


class Steps:
    """The requests that are worked on."""

    __slots__ = ("_purgatory", "_waiting")

    def __init__(self, purgatory: Purgatory) -> None:
        """Begin without any; their answers are delivered by the purgatory."""
        self._purgatory = purgatory
        self._waiting: deque[tuple[Work[Any], Deferred[Any]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def run(self, work: Work[T]) -> T | Deferred[T]:
        """Do the first step of some work; return its outcome, deferred if there is more to do."""
        deferred: Deferred[T] = Deferred()
        self._step(work, deferred, STEP_COST // (_CROWDED if self._waiting else 1))
        if deferred.done:
            return deferred.value
        self._waiting.append((work, deferred))
        return deferred

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next: at once, or None."""
        return 0 if self._waiting else None

    def tick(self) -> None:
        """Work on those that wait, the first ones first, until that was a step."""
        left = STEP_COST
        for _ in range(len(self._waiting)):
            work, deferred = self._waiting.popleft()
            if deferred.cancelled:
                continue
            outcome: Deferred[Any] = Deferred()
            left -= self._step(work, outcome, left)
            if outcome.done:
                self._resolve_later(deferred, outcome.value)
            else:
                self._waiting.append((work, deferred))
            if left <= 0:
                return

    def _resolve_later(self, deferred: Deferred[Any], value: object) -> None:
        self._purgatory.deliver_later(lambda: deferred.resolve(value))

    @staticmethod
    def _step(work: Work[T], outcome: Deferred[T], budget: int) -> int:
        """Work until a budget is used up, or resolve the outcome; return how much work it was."""
        done = 0
        try:
            while done < budget:
                done += next(work)
        except StopIteration as end:
            outcome.resolve(end.value)
        return done
