"""A limit on the memory of all receive buffers together, without a deadlock.

A request that arrives in pieces uses memory until it is complete. When the budget is used up, a connection that needs
more memory stops reading and waits in a queue. Several incomplete requests could then wait for each other for ever. So
one connection at a time may exceed the budget: it has the overdraft. The memory is bounded by the budget and one
request of the largest size. A client that stalls while its connection has the overdraft is closed by the time-outs of
`headrace.server.connections.stalls`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Waiter(Protocol):
    """A connection that may have to wait for memory."""

    def memory_available(self) -> None:
        """Call `acquire` again. `release` calls this method, so it must not handle requests at once."""


class MemoryBudget:
    """Counts bytes against a limit, and queues the connections for which there is no memory."""

    __slots__ = ("_limit", "_overdraft", "_waiters", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._overdraft: Waiter | None = None
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.used = 0

    @property
    def contended(self) -> bool:
        """Whether connections wait, or the overdraft is used. Connections should then free spare memory."""
        return bool(self._waiters) or self.used > self._limit

    def has_room(self, count: int) -> bool:
        """Return whether `count` more bytes are within the limit."""
        return self.used + count <= self._limit

    def acquire(self, waiter: Waiter, count: int) -> bool:
        """Acquire `count` bytes and return True; or add `waiter` to the queue and return False."""
        if self.used + count > self._limit:
            if self._overdraft not in (None, waiter):
                self._waiters[waiter] = None
                return False
            self._overdraft = waiter
        self._waiters.pop(waiter, None)
        self.used += count
        return True

    def release(self, waiter: Waiter, count: int) -> None:
        """Release `count` bytes, and let the waiting connections try again."""
        self.used -= count
        if self._overdraft is waiter or self.used <= self._limit:
            self._overdraft = None
        if self._waiters and self._overdraft is None:
            # Each connection tries again in turn. If there is not enough memory, it queues again, behind later
            # ones. Fairness within one round is enough.
            waiting, self._waiters = self._waiters, OrderedDict()
            for other in waiting:
                other.memory_available()

    def forget(self, waiter: Waiter) -> None:
        """Remove a closed connection from the queue."""
        self._waiters.pop(waiter, None)
