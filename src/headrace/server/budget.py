"""A bound on the memory of all receive buffers together, without a deadlock.

Requests that arrive in pieces hold memory while they wait for their rest. When the budget is used up, a
connection that needs more stops reading and queues here. Several half-received requests could then wait for each
other for ever; so the first in the queue may exceed the budget (the overdraft), one connection at a time. Memory
is bounded by the budget and one largest request; a client that stalls with the overdraft runs into the time-outs of
`headrace.server.connection`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Waiter(Protocol):
    """A user of the memory budget that waits for memory."""

    def memory_available(self) -> None:
        """Ask again now. Called from within `release`, so it must not handle requests at once."""


class MemoryBudget:
    """Counts bytes against a limit; grants, or queues the one who asked."""

    __slots__ = ("_limit", "_overdraft", "_waiters", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._overdraft: Waiter | None = None
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.used = 0

    @property
    def contended(self) -> bool:
        """Whether somebody waits, or the overdraft is used: who holds memory without need should give it back."""
        return bool(self._waiters) or self.used > self._limit

    def has_room(self, count: int) -> bool:
        """Whether `count` more bytes are there without a wait and without the overdraft."""
        return self.used + count <= self._limit

    def acquire(self, waiter: Waiter, count: int) -> bool:
        """Take `count` bytes, or queue `waiter` and return False."""
        if self.used + count > self._limit:
            if self._overdraft not in (None, waiter):
                self._waiters[waiter] = None
                return False
            self._overdraft = waiter
        self._waiters.pop(waiter, None)
        self.used += count
        return True

    def release(self, waiter: Waiter, count: int) -> None:
        """Give `count` bytes back and let those who wait ask again."""
        self.used -= count
        if self._overdraft is waiter or self.used <= self._limit:
            self._overdraft = None
        if self._waiters and self._overdraft is None:
            # Each asks again in turn and queues again if there is not enough, behind those who came later:
            # fairness over a round is all that is needed.
            waiting, self._waiters = self._waiters, OrderedDict()
            for other in waiting:
                other.memory_available()

    def forget(self, waiter: Waiter) -> None:
        """Take a connection that is gone out of the queue."""
        self._waiters.pop(waiter, None)
