"""The limits of Kinesis, and how they are counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

MIB: Final = 1 << 20
KIB: Final = 1 << 10
_SECOND_MS: Final = 1_000

CALLS_PER_S: Final[Mapping[str, int]] = MappingProxyType(
    {
        "CreateStream": 5,
        "DeleteStream": 5,
        "DescribeStream": 10,
        "DescribeStreamSummary": 20,
        "ListShards": 1_000,
        "ListStreams": 5,
        "MergeShards": 5,
        "RegisterStreamConsumer": 5,
        "DeregisterStreamConsumer": 5,
        "DescribeStreamConsumer": 20,
        "ListStreamConsumers": 5,
        "SplitShard": 5,
        "UpdateShardCount": 10,
    }
)
"""The calls per second of each operation: per account, for ListShards per stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a stream. The defaults are those of AWS in 2026, for provisioned streams.

    Attributes:
        reads_per_s: The calls of GetRecords per second and shard; the same number for GetShardIterator.
        read_bytes_per_s: The bytes per second that GetRecords returns from a shard, and that are pushed to each
            subscriber.
        put_records_per_s: The records per second that a shard accepts.
        put_bytes_per_s: The bytes per second that a shard accepts, partition keys included.
        calls_per_s: The calls per second of the other operations, by name.
        get_bytes: The most bytes that one GetRecords returns.
        get_records: The most records that one GetRecords returns.
        put_request_bytes: The most bytes of one PutRecords.
        put_request_records: The most records of one PutRecords.
        iterator_ttl_ms: The time in milliseconds for which an iterator is valid.
        token_ttl_ms: The time in milliseconds for which the token of the next page is valid.
        subscription_ms: The duration of a subscription in milliseconds.
        throttled: Whether limits per second are enforced.
    """

    reads_per_s: int = 5
    read_bytes_per_s: int = 2 * MIB
    put_records_per_s: int = 1_000
    put_bytes_per_s: int = MIB
    calls_per_s: Mapping[str, int] = field(default_factory=lambda: CALLS_PER_S)
    get_bytes: int = 10 * MIB
    get_records: int = 10_000
    put_request_bytes: int = 10 * MIB
    put_request_records: int = 500
    iterator_ttl_ms: int = 300_000
    token_ttl_ms: int = 300_000
    subscription_ms: int = 300_000
    throttled: bool = True

    def unthrottled(self) -> Limits:
        """Return the same limits without limits per second, for load and for tests of something else."""
        return replace(self, throttled=False)


class Window:
    """A count over the last second: at most the limit in any 1,000 ms."""

    __slots__ = ("_entries", "_sum")

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int]] = deque()
        self._sum = 0

    def total(self, now_ms: int) -> int:
        """Return the amount of the last second."""
        entries = self._entries
        while entries and entries[0][0] <= now_ms - _SECOND_MS:
            self._sum -= entries.popleft()[1]
        return self._sum

    def fits(self, now_ms: int, amount: int, limit: int) -> bool:
        """Whether a further amount is within the limit."""
        return self.total(now_ms) + amount <= limit

    def add(self, now_ms: int, amount: int) -> None:
        """Add an amount to the count."""
        entries = self._entries
        self._sum += amount
        if entries and entries[-1][0] == now_ms:
            amount += entries.pop()[1]
        entries.append((now_ms, amount))

    def take(self, now_ms: int, amount: int, limit: int) -> bool:
        """Add an amount if it is within the limit; return whether it was."""
        if not self.fits(now_ms, amount, limit):
            return False
        self.add(now_ms, amount)
        return True


class ReadBudget:
    """The read limits of a shard: calls, bytes, and the pause after a reply larger than a second's limit."""

    __slots__ = ("_bytes", "_calls", "_free_at_ms")

    def __init__(self) -> None:
        self._calls = Window()
        self._bytes = Window()
        self._free_at_ms = 0

    def admit(self, now_ms: int, limits: Limits) -> bool:
        """Count a call if it is allowed. A refused call does not count."""
        if not limits.throttled:
            return True
        if now_ms < self._free_at_ms or self._bytes.total(now_ms) >= limits.read_bytes_per_s:
            return False
        return self._calls.take(now_ms, 1, limits.reads_per_s)

    def spend(self, now_ms: int, size: int, limits: Limits) -> None:
        """Count the bytes of a reply. 10 MiB at 2 MiB per second block the calls of five seconds."""
        if limits.throttled and size:
            self._bytes.add(now_ms, size)
        if size > limits.read_bytes_per_s:
            self._free_at_ms = now_ms + size * _SECOND_MS // limits.read_bytes_per_s


class PutBudget:
    """The write limits of a shard. A record above one second's limit uses a token bucket.

    The bucket fills at the shard's rate. AWS documents for large records only that a shard accepts bursts of 10 MiB and
    1 MiB per second on average.
    """

    __slots__ = ("_bytes", "_records", "_tank_free_at_ms")

    def __init__(self) -> None:
        self._records = Window()
        self._bytes = Window()
        self._tank_free_at_ms = 0

    def take(self, now_ms: int, size: int, limits: Limits) -> bool:
        """Count a record if it is within the limits; return whether it is."""
        if not limits.throttled:
            return True
        if not self._records.fits(now_ms, 1, limits.put_records_per_s):
            return False
        if size > limits.put_bytes_per_s:
            if now_ms < self._tank_free_at_ms:
                return False
            self._tank_free_at_ms = now_ms + size * _SECOND_MS // limits.put_bytes_per_s
        elif not self._bytes.take(now_ms, size, limits.put_bytes_per_s):
            return False
        self._records.add(now_ms, 1)
        return True
