"""Finding records by timestamp: through the index to a block, through headers to a batch, then through its records.

Control batches are skipped. A marker has the time at which its transaction ended. Where records have the times of
events, a marker would be found instead of later records.

A lookup is a generator, so that it can be done in steps: it yields the cost of each step in bytes. The log may change
between two steps. So a lookup only keeps offsets, and finds its segment again in each step.

Some batches are not decoded: batches with more records than a broker appends, batches that decompress to more than
`LOOK_BYTES`, and batches whose records are damaged. The result is then the first offset of the batch, from which a
reader misses no record, and the batch's largest timestamp.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from headrace.core.log.segments.segment import BatchPosition, Segment
from headrace.core.log.segments.segments import Segments
from headrace.errors import CorruptRecordError
from headrace.records.batch import MAX_RECORDS, BatchHeader, TimestampType
from headrace.records.raw import records_of
from headrace.records.times import first_since, newest_since
from headrace.types import NO_TIMESTAMP

LOOK_BYTES: Final = 8 << 20
"""The largest size of the decompressed records of a batch that is decoded. Decompressing them takes up to 25
milliseconds."""
MOST_BATCHES: Final = 16
"""The largest number of batches that one lookup decodes. Headers may claim timestamps that no record has."""
_RECORD_COST: Final = 200
"""The cost of a record, or of a batch header in a segment, in bytes of decompressed records: some nanoseconds each."""
_BATCH_COST: Final = 8 << 10
_HEADERS_AT_ONCE: Final = 1 << 13
"""The number of headers that are walked in one step."""
T = TypeVar("T")

Lookup = Generator[int, None, T]
"""Steps that yield their cost in bytes, and return the result."""


class TimestampOffset(NamedTuple):
    """A record found by time."""

    offset: int
    timestamp: int
    leader_epoch: int


def at_once(lookup: Lookup[T]) -> T:
    """Run all steps of a lookup, and return its result."""
    while True:
        try:
            next(lookup)
        except StopIteration as end:
            found: T = end.value
            return found


def lookup_timestamp(
    segments: Segments, timestamp: int, log_start_offset: int
) -> Lookup[TimestampOffset | None]:
    """Return the first record, at or after the log start offset, with this timestamp or a later one."""
    offset = log_start_offset
    for number in range(MOST_BATCHES + 1):
        place = yield from _next_batch(segments, timestamp, offset)
        if place is None:
            return None
        segment, batch, walked = place
        header = segment.header_at(batch.position)
        start = max(batch.base_offset, log_start_offset)
        cost = _BATCH_COST + _RECORD_COST * walked
        near = TimestampOffset(start, header.max_timestamp, header.partition_leader_epoch)
        whole = (
            header.records_count > header.last_offset_delta
        )  # otherwise the batch has been compacted
        if number == MOST_BATCHES or (
            header.timestamp_type == TimestampType.LOG_APPEND_TIME and whole
        ):
            yield cost
            return near
        try:
            data = _records(segment, batch, header)
            yield cost + len(data)
            steps = first_since(header, data, timestamp, range(start, batch.next_offset))
            found = yield from _at_cost(steps)
        except CorruptRecordError:
            # The producer's fault, not the disk's: the append did not decode the records. The result is the batch.
            return near
        if found is not None:
            return TimestampOffset(*found, header.partition_leader_epoch)
        offset = batch.next_offset
    raise AssertionError("the last batch is answered without being decoded")


def lookup_newest(segments: Segments, log_start_offset: int) -> Lookup[TimestampOffset | None]:
    """Return the first record, at or after the log start offset, with the largest timestamp."""
    newest = yield from _newest_of_first(segments, log_start_offset)
    for segment in segments:
        if segment.base_offset >= log_start_offset:
            newest = max(newest, segment.newest_record)
    if newest < 0:
        return None
    return (yield from lookup_timestamp(segments, newest, log_start_offset))


def _at_cost(steps: Generator[int, None, T]) -> Lookup[T]:
    """Run steps that yield the number of records they have walked, as a lookup."""
    while True:
        try:
            yield _RECORD_COST * next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def _records(segment: Segment, batch: BatchPosition, header: BatchHeader) -> bytes:
    """Return the decompressed records of a batch.

    Raises:
        CorruptRecordError: The records cannot be decompressed, or are too many or too large.
    """
    if header.records_count > MAX_RECORDS:
        raise CorruptRecordError(f"{header.records_count} records are more than a lookup decodes")
    data = segment.reopen().read(batch.position, header.size)
    return records_of(header, data, LOOK_BYTES)


def _next_batch(
    segments: Segments, timestamp: int, offset: int
) -> Lookup[tuple[Segment, BatchPosition, int] | None]:
    """Find the first batch with records at or after an offset whose header has this timestamp or a later one.

    Returns:
        Its segment, the batch, and the number of batches walked since the last step. None without such a batch.
    """
    while True:
        segment = next(
            (
                each
                for each in segments
                if each.size and each.end_offset > offset and each.newest_record >= timestamp
            ),
            None,
        )
        if segment is None:
            return None
        segments.keep_open(segment)
        position = _start_in(segment, timestamp, offset)
        end_offset = segment.end_offset
        if position is not None:
            batches = islice(segment.walk(position, segment.size), _HEADERS_AT_ONCE)
            for walked, batch in enumerate(batches):
                if (
                    batch.max_timestamp >= timestamp
                    and batch.next_offset > offset
                    and not batch.is_control
                ):
                    return segment, batch, walked
                end_offset = batch.next_offset
        offset = max(offset, end_offset)
        yield _RECORD_COST * _HEADERS_AT_ONCE


def _start_in(segment: Segment, timestamp: int, offset: int) -> int | None:
    """Return the byte position in a segment where the search for a timestamp at or after an offset begins.

    None if the segment has no such batch.
    """
    index = segment.index
    entry = index.entry_for_timestamp(timestamp)
    if entry is None:
        return None
    if offset <= segment.base_offset:
        return index.positions[entry]
    located = segment.locate(offset)
    return None if located is None else max(located, index.positions[entry])


def _newest_of_first(segments: Segments, log_start_offset: int) -> Lookup[int]:
    """Return the largest timestamp, at or after the log start offset, in the segment that this offset divides.

    -1 if the offset divides no segment, or there is no timestamp.
    """
    newest, offset = NO_TIMESTAMP, log_start_offset
    while True:
        segment = next((each for each in segments if each.end_offset > offset), None)
        if segment is None or segment.base_offset >= log_start_offset:
            return newest
        segments.keep_open(segment)
        position = segment.locate(offset)
        if position is None:
            return newest
        for batch in islice(segment.walk(position, segment.size), _HEADERS_AT_ONCE):
            if batch.max_timestamp > newest and not batch.is_control:
                if batch.base_offset < log_start_offset:
                    # The log start offset may have removed the record with this timestamp.
                    newest = yield from _newest_in_batch(segment, batch, log_start_offset)
                    offset = batch.next_offset
                    break
                newest = batch.max_timestamp
            offset = batch.next_offset
        yield _RECORD_COST * _HEADERS_AT_ONCE


def _newest_in_batch(segment: Segment, batch: BatchPosition, log_start_offset: int) -> Lookup[int]:
    header = segment.header_at(batch.position)
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    try:
        data = _records(segment, batch, header)
        yield _BATCH_COST + len(data)
        return (yield from _at_cost(newest_since(header, data, log_start_offset)))
    except CorruptRecordError:
        return header.max_timestamp  # the producer's fault: the header's timestamp is the result
