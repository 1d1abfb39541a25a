"""Requests that cannot be answered yet (Kafka's purgatory): produces that wait for a sync, fetches that wait for data.

Nothing here is resolved while state is being changed. An operation that is complete is put on the purgatory's list,
and whoever is outermost (`Broker.handle`, `tick`, `finish_sync`) drains the list last: resolving a deferred may make
the server hand in the connection's next request at once. Answers that first have to be read, those of fetches, are on a
list of their own: one record may complete thousands of fetches, so each round reads for some, and the others follow in
the next rounds. It is the same with fetches that look whether there is enough for them, and with those that expire.

The answer of an operation whose client has gone is cancelled. The operation then lets go of everything that it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from headrace.broker.waiting.notices import Notices
from headrace.core.deadlines import Deadlines

READS_PER_ROUND: Final = 500
"""Partitions read in one round for fetches that have waited: some 10 ms."""
EXPIRED_PER_ROUND: Final = 500
"""Operations that expire in one round."""


class Delayed(Protocol):
    """An operation with a deadline."""

    def __hash__(self) -> int:
        """Operations are told apart by identity."""

    def expire(self) -> None:
        """Complete because the deadline has passed."""


class Purgatory:
    """The delayed operations: their deadlines, and the completions that have not been delivered yet."""

    __slots__ = ("_completions", "_deadlines", "_reads", "_reads_left", "has_delivered", "notices")

    def __init__(self) -> None:
        self._deadlines: Deadlines[Delayed] = Deadlines()
        self._completions: deque[Callable[[], None]] = deque()
        self._reads: deque[tuple[int, Callable[[], None]]] = deque()
        self._reads_left = READS_PER_ROUND
        self.has_delivered = False
        """Whether something was delivered since `begin_round`."""
        self.notices = Notices()
        """The fetches that have to look again."""

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next operation expires, or the next round of reads or looks is due: at once, which is 0."""
        return 0 if self._reads or self.notices else self._deadlines.next_ms

    def add(self, operation: Delayed, deadline_ms: int) -> None:
        """Watch an operation's deadline."""
        self._deadlines.set(operation, deadline_ms)

    def complete(self, operation: Delayed, deliver: Callable[[], None]) -> None:
        """Forget an operation's deadline; `deliver` runs when the broker has come to rest."""
        self._deadlines.cancel(operation)
        self._completions.append(deliver)

    def complete_by_reading(
        self, operation: Delayed, partitions: int, deliver: Callable[[], None]
    ) -> None:
        """Forget an operation's deadline; `deliver`, which reads so many partitions, runs in this round or later."""
        self._deadlines.cancel(operation)
        self._reads.append((max(1, partitions), deliver))

    def forget(self, operation: Delayed) -> None:
        """Forget an operation: its answer was cancelled."""
        self._deadlines.cancel(operation)

    def expire(self, now_ms: int) -> None:
        """Complete what has waited long enough; the next round does so with what is too much for this one."""
        for operation in self._deadlines.expire(now_ms, EXPIRED_PER_ROUND):
            operation.expire()

    def deliver_later(self, deliver: Callable[[], None]) -> None:
        """Run something when the broker has come to rest."""
        self._completions.append(deliver)

    def begin_round(self) -> None:
        """Allow as many reads, and looks, as one round may have."""
        self.has_delivered = False
        self._reads_left = READS_PER_ROUND
        self.notices.begin_round()

    def deliver(self) -> bool:
        """Run the completions, and looks and reads as far as the round allows; tell whether anything was run."""
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
