"""How much Kinesis does in a second, and how it counts."""

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
"""Calls of operations in a second: of an account, of ListShards for each stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a stream. The defaults are those of AWS in 2026, for provisioned streams.

    Attributes:
        reads_per_s: GetRecords of one shard; as many GetShardIterator.
        read_bytes_per_s: What GetRecords returns of one shard, and what is pushed to each subscriber.
        put_records_per_s: Records that one shard takes.
        put_bytes_per_s: Their bytes, partition keys included.
        calls_per_s: Calls of the other operations, by name.
        get_bytes: The most that one GetRecords returns.
        get_records: The most records that one GetRecords returns.
        put_request_bytes: The most that one PutRecords brings.
        put_request_records: The most records that one PutRecords brings.
        iterator_ttl_ms: How long an iterator is good.
        token_ttl_ms: How long the token of the next page is good.
        subscription_ms: How long a subscription lasts.
        throttled: Whether the limits by the second are kept at all.
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
        """Return the same without limits by the second, for tests of something else and for load."""
        return replace(self, throttled=False)


class Window:
    """A count over the last second: at most the limit in any 1,000 ms."""

    __slots__ = ("_entries", "_sum")

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int]] = deque()
        self._sum = 0

    def total(self, now_ms: int) -> int:
        """Return what the last second has."""
        entries = self._entries
        while entries and entries[0][0] <= now_ms - _SECOND_MS:
            self._sum -= entries.popleft()[1]
        return self._sum

    def fits(self, now_ms: int, amount: int, limit: int) -> bool:
        """Whether there is room for more."""
        return self.total(now_ms) + amount <= limit

    def add(self, now_ms: int, amount: int) -> None:
        """Add an amount to the count."""
        entries = self._entries
        self._sum += amount
        if entries and entries[-1][0] == now_ms:
            amount += entries.pop()[1]
        entries.append((now_ms, amount))

    def take(self, now_ms: int, amount: int, limit: int) -> bool:
        """Count something if there is room for it; return whether there was."""
        if not self.fits(now_ms, amount, limit):
            return False
        self.add(now_ms, amount)
        return True


class ReadBudget:
    """The reads of a shard: calls, bytes, and the pause after an answer that was more than a second's worth."""

    __slots__ = ("_bytes", "_calls", "_free_at_ms")

    def __init__(self) -> None:
        self._calls = Window()
        self._bytes = Window()
        self._free_at_ms = 0

    def admit(self, now_ms: int, limits: Limits) -> bool:
        """Count a call, if it may be made; a refused one does not count."""
        if not limits.throttled:
            return True
        if now_ms < self._free_at_ms or self._bytes.total(now_ms) >= limits.read_bytes_per_s:
            return False
        return self._calls.take(now_ms, 1, limits.reads_per_s)

    def spend(self, now_ms: int, size: int, limits: Limits) -> None:
        """Count what a call returned: 10 MiB at 2 MiB a second refuse the calls of five seconds."""
        if limits.throttled and size:
            self._bytes.add(now_ms, size)
        if size > limits.read_bytes_per_s:
            self._free_at_ms = now_ms + size * _SECOND_MS // limits.read_bytes_per_s


class PutBudget:
    """The write limits of a shard. Records above one second's limit use a token bucket that fills at the shard's rate.

    AWS says of large records only that a shard bursts to 10 MiB and averages 1 MiB a second; the tank is that.
    """

    __slots__ = ("_bytes", "_records", "_tank_free_at_ms")

    def __init__(self) -> None:
        self._records = Window()
        self._bytes = Window()
        self._tank_free_at_ms = 0

    def take(self, now_ms: int, size: int, limits: Limits) -> bool:
        """Count a record, if there is room for it."""
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
