"""Records found by time, as a read sees them.

A broker answers the first entry of its log with a time or a later one. That may be no record of the read. Apache Kafka
finds the markers that end transactions, too, which have the broker's time, later than the times of events; and under
`read_committed` the records of aborted transactions are not read. So the entry at an answered offset is looked at. If
the read would not have it, the entries behind it are looked at, up to the first that the read has. In most cases one
batch is enough.
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
    """What is asked of a cluster, under the isolation level of the read."""

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        """Return the next offset of each partition, with position LATEST, or its first, with EARLIEST."""

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> Mapping[TopicPartition, FetchedPartition]:
        """Return raw batches of each partition."""


def first_records(
    client: LogReader,
    times: Mapping[TopicPartition, int],
    answered: Mapping[TopicPartition, int],
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[TopicPartition, int]:
    """Return the first record of a time or a later one that a read would have; -1 where there is none.

    Args:
        client: The cluster.
        times: Milliseconds since 1970.
        answered: The offsets that brokers answered for them, -1 for none.
        timeout_s: How long nothing may come.
        clock: Seconds that only grow.

    Raises:
        ApiError: A broker refuses, or a partition cannot be read in time.
        TransportError: No broker answers in time.
    """
    hits = [each for each, offset in answered.items() if offset >= 0]
    if not hits:
        return dict(answered)
    ends = client.offsets(hits, LATEST)
    looks = {each: _Look(each, times[each], answered[each], ends[each]) for each in hits}
    size, deadline = FIRST_BYTES, clock() + timeout_s
    while pending := [each for each, look in looks.items() if look.found is None]:
        fetched = client.fetch({each: looks[each].position(size) for each in pending})
        begins = _begins_of_what_is_gone(client, fetched)
        moved = [
            each
            for each in pending
            if looks[each].skip_to(begins.get(each, -1)) or looks[each].take(fetched[each])
        ]
        if moved:
            size, deadline = NEXT_BYTES, clock() + timeout_s
        elif clock() > deadline:
            raise _stalled(pending[0], fetched[pending[0]], times)
        else:
            time.sleep(PAUSE_S)
    return {each: looks[each].result() if each in looks else -1 for each in answered}


def _begins_of_what_is_gone(
    client: LogReader, fetched: Mapping[TopicPartition, FetchedPartition]
) -> dict[TopicPartition, int]:
    """Return where partitions begin of which retention has deleted what brokers answered a moment ago."""
    gone = [each for each, data in fetched.items() if data.error == ErrorCode.OFFSET_OUT_OF_RANGE]
    return client.offsets(gone, EARLIEST) if gone else {}


class _Look:
    """How far one partition has been looked at."""

    def __init__(self, place: TopicPartition, time_ms: int, answered: int, end: int) -> None:
        self._place = place
        self._micros = time_ms * 1000
        self._decoder = RangeDecoder(place, answered, end, _SCHEMA)
        # Behind the end of the read: the record of a transaction that is open. The read begins or ends there.
        self.found: int | None = answered if answered >= end else None

    def position(self, size: int) -> FetchPosition:
        return FetchPosition(self._decoder.position, max_bytes=size)

    def result(self) -> int:
        assert self.found is not None
        return self.found

    def skip_to(self, begin: int) -> bool:
        """Go on where the partition begins by now; return whether that is further on."""
        if begin <= self._decoder.position:
            return False
        end = self._decoder.end
        if begin >= end:
            self.found = -1
        else:
            self._decoder = RangeDecoder(self._place, begin, end, _SCHEMA)
        return True

    def take(self, fetched: FetchedPartition) -> bool:
        """Look through what was fetched; return whether there was anything, or nothing is to come."""
        if fetched.error:
            if fetched.error.retriable:
                return False
            raise ApiError.for_code(fetched.error, f"looking for a time in {self._place}")
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
    place: TopicPartition, fetched: FetchedPartition, times: Mapping[TopicPartition, int]
) -> HeadraceError:
    what = f"{place} could not be read to find its first record of {times[place]} or later"
    return stalled(what, fetched)
