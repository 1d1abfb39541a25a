"""Find the first record of a time that a read returns.

A broker returns the offset of the first log entry of a time or later. The read may not return that entry. Apache Kafka
also finds transaction markers, which have the broker's time, usually later than the times of records. Under
`read_committed` a read skips the records of aborted transactions. So this module reads from the broker's offset on
until it finds a record that the read returns. In most cases one batch is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

import pyarrow as pa

from headrace.clients.blocking import EARLIEST, LATEST, FetchedPartition, FetchPosition
from headrace.errors import ApiError, ErrorCode, HeadraceError
from headrace.spark.source.arrow import RangeDecoder
from headrace.spark.source.stalled import stalled
from headrace.types import TopicPartition

FIRST_BYTES: Final = 64 << 10
NEXT_BYTES: Final = 4 << 20
PAUSE_S: Final = 0.1
_SCHEMA: Final = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])


class LogReader(Protocol):
    """The requests that the search needs, under the isolation level of the read."""

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset (position EARLIEST) or the end offset (LATEST) of each partition."""

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> Mapping[TopicPartition, FetchedPartition]:
        """Return encoded batches of each partition."""


def first_records(
    client: LogReader,
    times: Mapping[TopicPartition, int],
    answered: Mapping[TopicPartition, int],
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[TopicPartition, int]:
    """Return the offset of the first record of a time or later that the read returns; -1 if there is none.

    Args:
        client: The cluster.
        times: Milliseconds since 1970, by partition.
        answered: The offsets that brokers returned for these times, -1 for none.
        timeout_s: The longest time without progress, in seconds.
        clock: A monotonic clock in seconds.

    Raises:
        ApiError: A broker refuses a request, or returns errors until the time is over.
        TransportError: The brokers return no records in time.
    """
    hits = [each for each, offset in answered.items() if offset >= 0]
    if not hits:
        return dict(answered)
    ends = client.offsets(hits, LATEST)
    searches = {each: _Search(each, times[each], answered[each], ends[each]) for each in hits}
    size, deadline = FIRST_BYTES, clock() + timeout_s
    while pending := [each for each, search in searches.items() if search.found is None]:
        fetched = client.fetch({each: searches[each].position(size) for each in pending})
        begins = _first_offsets_of_expired(client, fetched)
        moved = [
            each
            for each in pending
            if searches[each].skip_to(begins.get(each, -1)) or searches[each].take(fetched[each])
        ]
        if moved:
            size, deadline = NEXT_BYTES, clock() + timeout_s
        elif clock() > deadline:
            raise _stalled(pending[0], fetched[pending[0]], times)
        else:
            time.sleep(PAUSE_S)
    return {each: searches[each].result() if each in searches else -1 for each in answered}


def _first_offsets_of_expired(
    client: LogReader, fetched: Mapping[TopicPartition, FetchedPartition]
) -> dict[TopicPartition, int]:
    """Return the first offsets of partitions whose answered offsets retention has deleted in the meantime."""
    gone = [each for each, data in fetched.items() if data.error == ErrorCode.OFFSET_OUT_OF_RANGE]
    return client.offsets(gone, EARLIEST) if gone else {}


class _Search:
    """The search in one partition."""

    def __init__(self, partition: TopicPartition, time_ms: int, answered: int, end: int) -> None:
        self._partition = partition
        self._micros = time_ms * 1000
        self._decoder = RangeDecoder(partition, answered, end, _SCHEMA)
        # At or after the end of the read there is an open transaction's record. The read begins or ends there.
        self.found: int | None = answered if answered >= end else None

    def position(self, size: int) -> FetchPosition:
        return FetchPosition(self._decoder.position, max_bytes=size)

    def result(self) -> int:
        assert self.found is not None
        return self.found

    def skip_to(self, begin: int) -> bool:
        """Continue at the partition's present first offset. Return whether that is after the decoder's position."""
        if begin <= self._decoder.position:
            return False
        end = self._decoder.end
        if begin >= end:
            self.found = -1
        else:
            self._decoder = RangeDecoder(self._partition, begin, end, _SCHEMA)
        return True

    def take(self, fetched: FetchedPartition) -> bool:
        """Search the fetched batches. Return whether the search made progress or has ended."""
        if fetched.error:
            if fetched.error.retriable:
                return False
            raise ApiError.for_code(fetched.error, f"looking for a time in {self._partition}")
        before, decoder = self._decoder.position, self._decoder
        for batch in (
            *decoder.feed(fetched.records, fetched.aborted_transactions),
            *decoder.finish(),
        ):
            if self.found is None:
                self.found = _first(batch, self._micros)
        nothing_left = not fetched.records and fetched.last_stable_offset >= decoder.end
        if self.found is None and (decoder.position >= decoder.end or nothing_left):
            self.found = -1
        return self.found is not None or decoder.position > before


def _first(batch: Any, micros: int) -> int | None:
    times = batch.column("timestamp").view(pa.int64()).to_pylist()
    row = next((row for row, at in enumerate(times) if at >= micros), None)
    return None if row is None else int(batch.column("offset")[row].as_py())


def _stalled(
    partition: TopicPartition, fetched: FetchedPartition, times: Mapping[TopicPartition, int]
) -> HeadraceError:
    what = f"{partition} could not be read to find its first record of {times[partition]} or later"
    return stalled(what, fetched)
