"""The delayed requests (Kafka's purgatory): produces that wait for a sync, fetches that wait for data.

The purgatory resolves no deferred while state is being changed, because the server may call the broker with the next
request of the connection at once. It puts a complete operation on a list. The outermost call of the broker
(`Broker.handle`, `tick`, `finish_sync`) drains the list last. Fetches are on a list of their own, because their
responses have to be read first: one record may complete thousands of fetches, so each round reads for some of them,
and later rounds read for the others. The number of fetches that check their partitions, and of operations that expire,
is bounded for each round too.

If the connection of an operation is closed, its response is cancelled, and the operation releases everything that it
holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from headrace.broker.waiting.notices import Notices
from headrace.core.deadlines import Deadlines

READS_PER_ROUND: Final = 500
"""The partitions that one round reads for delayed fetches: some 10 ms."""
EXPIRED_PER_ROUND: Final = 500
"""The greatest number of operations that expire in one round."""


class DelayedOperation(Protocol):
    """A delayed operation with a deadline."""

    def __hash__(self) -> int:
        """Operations are equal only if they are the same object."""

    def expire(self) -> object:
        """Complete because the deadline has passed."""


class Alarm:
    """A function to call at a time: an operation that nothing completes earlier."""

    __slots__ = ("expire",)

    def __init__(self, expire: Callable[[], object]) -> None:
        self.expire = expire
        """Called when the time has come."""


class Purgatory:
    """The delayed operations: their deadlines, and the completions that are not delivered yet."""

    __slots__ = ("_completions", "_deadlines", "_reads", "_reads_left", "has_delivered", "notices")

    def __init__(self) -> None:
        self._deadlines: Deadlines[DelayedOperation] = Deadlines()
        self._completions: deque[Callable[[], None]] = deque()
        self._reads: deque[tuple[int, Callable[[], None]]] = deque()
        self._reads_left = READS_PER_ROUND
        self.has_delivered = False
        """Whether anything was delivered since `begin_round`."""
        self.notices = Notices()
        """The fetches that have to check their partitions again."""

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the next operation expires; 0, which means at once, while reads or checks are pending."""
        return 0 if self._reads or self.notices else self._deadlines.next_ms

    def add(self, operation: DelayedOperation, deadline_ms: int) -> None:
        """Add an operation with its deadline."""
        self._deadlines.set(operation, deadline_ms)

    def complete(self, operation: DelayedOperation, deliver: Callable[[], None]) -> None:
        """Remove the deadline of an operation. `deliver` is called when no state is being changed."""
        self._deadlines.cancel(operation)
        self._completions.append(deliver)

    def complete_by_reading(
        self, operation: DelayedOperation, partitions: int, deliver: Callable[[], None]
    ) -> None:
        """Remove the deadline of an operation. This or a later round calls `deliver`, which reads `partitions`."""
        self._deadlines.cancel(operation)
        self._reads.append((max(1, partitions), deliver))

    def forget(self, operation: DelayedOperation) -> None:
        """Remove an operation whose response was cancelled."""
        self._deadlines.cancel(operation)

    def expire(self, now_ms: int) -> None:
        """Complete operations whose deadline has passed, as many as one round may. Later rounds complete the others."""
        for operation in self._deadlines.expire(now_ms, EXPIRED_PER_ROUND):
            operation.expire()

    def deliver_later(self, deliver: Callable[[], None]) -> None:
        """Call `deliver` when no state is being changed."""
        self._completions.append(deliver)

    def begin_round(self) -> None:
        """Begin a round: reset the budgets of reads and checks."""
        self.has_delivered = False
        self._reads_left = READS_PER_ROUND
        self.notices.begin_round()

    def deliver(self) -> bool:
        """Run the completions, and checks and reads within the budgets of the round; return whether anything ran."""
        if not (self._completions or self._reads or self.notices.moved):
            return False
        self.has_delivered = True
        ran = False
        while self._completions:
            self._completions.popleft()()
            ran = True
        ran |= self.notices.deliver()
        while self._reads and self._reads_left > 0:
            partitions, deliver = self._reads.popleft()
            self._reads_left -= partitions
            deliver()
            ran = True
        return ran
