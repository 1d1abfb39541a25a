"""The times at which a shard may be read, and the numbers of records to request. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.kinesis.client.backoff import JitteredBackoff
from headrace.kinesis.reading.settings import ReadSettings

READS_PER_S: Final = 5
READ_BYTES_PER_S: Final = 2 << 20
FULL_REPLY_BYTES: Final = 9 << 20
"""The size in bytes from which a reply counts as cut off. GetRecords returns at most 10 MiB."""
FULL_REPLY_PAUSE_MS: Final = 5_000
ITERATOR_AGE_MS: Final = 240_000
"""The age in milliseconds from which an iterator is not used any more. Iterators are valid for five minutes."""
RECORD_OVERHEAD_BYTES: Final = 256
"""The memory in bytes that a record takes besides its data."""
_FIRST_MEAN_BYTES: Final = 1 << 10
_MEAN_WEIGHT: Final = 0.3
_ARRIVAL_MS: Final = 6
"""A margin in milliseconds: two calls may arrive closer to each other than they were sent."""


class Pacing:
    """The limits of GetRecords on one shard: 5 calls and 2 MiB per second, shared by the groups that read it.

    Calls are spread evenly, and bytes delay the next call. This keeps both limits in every second without a history.
    """

    def __init__(self, settings: ReadSettings, chance: Callable[[], float]) -> None:
        """Start with the limits of the settings and a source of random numbers from 0 to 1."""
        self._poll_ms = settings.poll_ms
        self._max_records = settings.max_records
        groups = settings.groups_sharing
        # Groups do not know when other groups read. So each group only uses a whole number of calls per second.
        own_per_s = READS_PER_S // groups or READS_PER_S / groups
        self._spacing_ms = round(1000 / own_per_s) + _ARRIVAL_MS
        self._bytes_per_s = READ_BYTES_PER_S // groups
        self._backoff = JitteredBackoff(chance)
        self._mean_bytes: float = _FIRST_MEAN_BYTES
        self._sent_ms = 0
        self._limit = 0
        self._next_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """Return the time until the next read, in milliseconds."""
        return 0 if self._next_ms is None else max(0, self._next_ms - now_ms)

    def limit(self, space_bytes: int | None) -> int:
        """Return how many records to request: what a second allows, and what fits into the space."""
        records = self._bytes_per_s / self._mean_bytes
        if space_bytes is not None:
            records = min(records, space_bytes / (self._mean_bytes + RECORD_OVERHEAD_BYTES))
        return max(1, min(self._max_records, int(records)))

    def sent(self, now_ms: int, limit: int) -> None:
        """Note that a read was sent."""
        self._sent_ms = now_ms
        self._limit = limit
        self._next_ms = now_ms + self._spacing_ms

    def replied(self, now_ms: int, records: int, size_bytes: int, behind_ms: int | None) -> None:
        """Note the reply to a read."""
        self._backoff.reset()
        if records:
            mean = max(1.0, size_bytes / records)
            # A larger mean counts at once, a smaller one gradually.
            self._mean_bytes = max(
                mean, self._mean_bytes + _MEAN_WEIGHT * (mean - self._mean_bytes)
            )
        more = bool(behind_ms) or records >= self._limit
        pause_ms = self._spacing_ms if more else max(self._poll_ms, self._spacing_ms)
        paid_ms = 1000 * size_bytes // self._bytes_per_s
        if size_bytes >= FULL_REPLY_BYTES:
            paid_ms = max(paid_ms, FULL_REPLY_PAUSE_MS)
        self._next_ms = max(self._sent_ms + pause_ms, now_ms + paid_ms)

    def failed(self, now_ms: int) -> None:
        """Note that a read was refused or not answered."""
        self._next_ms = now_ms + max(self._spacing_ms, self._backoff.next_ms())
