"""Requests that cannot be answered yet (Kafka's purgatory): produces that wait for a sync, fetches that wait for data.

Nothing here is resolved while state is being changed. An operation that is complete is put on the purgatory's list,
and whoever is outermost (`Broker.handle`, `tick`, `finish_sync`) drains the list last: resolving a deferred may make
the server hand in the connection's next request at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headrace.core.deadlines import Deadlines
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchResponse
from headrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse

if TYPE_CHECKING:
    from headrace.broker.partition import Partition


class Delayed(Protocol):
    """An operation with a deadline."""

    def __hash__(self) -> int:
        """Operations are told apart by identity."""

    def expire(self) -> None:
        """Complete because the deadline has passed."""


class Purgatory:
    """The delayed operations: their deadlines, and the completions that have not been delivered yet."""

    __slots__ = ("_completions", "_deadlines")

    def __init__(self) -> None:
        self._deadlines: Deadlines[Delayed] = Deadlines()
        self._completions: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next operation expires."""
        return self._deadlines.next_ms

    def add(self, operation: Delayed, deadline_ms: int) -> None:
        """Watch an operation's deadline."""
        self._deadlines.set(operation, deadline_ms)

    def complete(self, operation: Delayed, deliver: Callable[[], None]) -> None:
        """Forget an operation's deadline; `deliver` runs when the broker has come to rest."""
        self._deadlines.cancel(operation)
        self._completions.append(deliver)

    def expire(self, now_ms: int) -> None:
        """Complete what has waited long enough."""
        for operation in self._deadlines.expire(now_ms):
            operation.expire()

    def deliver_later(self, deliver: Callable[[], None]) -> None:
        """Run something when the broker has come to rest."""
        self._completions.append(deliver)

    def deliver(self) -> bool:
        """Run the completions; tell whether there were any."""
        if not self._completions:
            return False
        while self._completions:
            self._completions.popleft()()
        return True


class DelayedProduce:
    """A produce response that leaves when every partition of it is below its high watermark, or failed."""

    __slots__ = ("_done", "_pending", "_purgatory", "_response", "_waits", "deferred")

    def __init__(self, response: ProduceResponse, purgatory: Purgatory) -> None:
        self.deferred: Deferred[ProduceResponse] = Deferred()
        self._response = response
        self._purgatory = purgatory
        self._pending: dict[int, PartitionProduceResponse] = {}
        self._waits = 0
        self._done = False

    def wait_for(
        self, partition: Partition, end_offset: int, part: PartitionProduceResponse
    ) -> None:
        """Let the response wait until `partition` has `end_offset` below its high watermark."""
        number = self._waits
        self._waits += 1
        self._pending[number] = part
        partition.await_high_watermark(
            end_offset, lambda error: self._partition_completed(number, error)
        )

    def _partition_completed(self, number: int, error: ErrorCode) -> None:
        part = None if self._done else self._pending.pop(number, None)
        if part is None:
            return
        _fail(part, error)
        if not self._pending:
            self._complete()

    def expire(self) -> None:
        """Answer REQUEST_TIMED_OUT for what is not durable yet: it may still become so, success would be a lie."""
        for part in self._pending.values():
            _fail(part, ErrorCode.REQUEST_TIMED_OUT)
        self._complete()

    def _complete(self) -> None:
        self._done = True
        self._purgatory.complete(self, lambda: self.deferred.resolve(self._response))


def _fail(part: PartitionProduceResponse, error: ErrorCode) -> None:
    if error is not ErrorCode.NONE:
        part.error_code = error
        part.base_offset = -1
        part.log_append_time_ms = -1


class DelayedFetch:
    """A fetch that waits for `min_bytes`, for an error, or for its deadline.

    It watches its partitions; when one has new data it looks at that partition alone. Only when there is enough it
    reads again, all partitions in the order of the request.
    """

    __slots__ = (
        "_available",
        "_done",
        "_missing_bytes",
        "_purgatory",
        "_read",
        "_watched",
        "deferred",
    )

    def __init__(
        self, read: Callable[[], FetchResponse], min_bytes: int, purgatory: Purgatory
    ) -> None:
        self.deferred: Deferred[FetchResponse] = Deferred()
        self._read = read
        self._missing_bytes = min_bytes
        self._purgatory = purgatory
        self._watched: dict[Partition, Callable[[], int]] = {}
        self._available: dict[Partition, int] = {}
        self._done = False

    def watch(self, partition: Partition, available: Callable[[], int], now: int) -> None:
        """Look at `partition` whenever its high watermark moves.

        Args:
            partition: One partition of the request.
            available: Returns how many bytes the request could get from it.
            now: What it would return at this moment.
        """
        self._watched[partition] = available
        self._available[partition] = now
        self._missing_bytes -= now
        partition.watchers[self] = None

    def partition_changed(self, partition: Partition) -> None:
        """Complete if the partition now has what is missing, or is gone."""
        if self._done:
            return
        if not partition.gone:
            now = self._watched[partition]()
            self._missing_bytes -= now - self._available[partition]
            self._available[partition] = now
            if self._missing_bytes > 0:
                return
        self.expire()

    def expire(self) -> None:
        """Answer with what there is."""
        if self._done:
            return
        self._done = True
        for partition in self._watched:
            partition.watchers.pop(self, None)
        self._purgatory.complete(self, lambda: self.deferred.resolve(self._read()))
