"""Finding records by timestamp: through the index to a block, over headers to a batch, through its records.

Control batches are passed over. They have no records, and the time of a marker is that of the end of its transaction:
where records have the times of events, it would be found in place of later records.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.log.segment import BatchPosition, Segment
from headrace.core.log.segments import Segments
from headrace.errors import CorruptRecordError
from headrace.records.batch import TimestampType
from headrace.records.reader import decode_batch
from headrace.types import NO_TIMESTAMP


class TimestampOffset(NamedTuple):
    """A record found by time."""

    offset: int
    timestamp: int
    leader_epoch: int


def find(segments: Segments, timestamp: int, log_start_offset: int) -> TimestampOffset | None:
    """Return the first record, at or after the log start, that has this timestamp or a later one."""
    for segment in segments:
        if (
            segment.size
            and segment.end_offset > log_start_offset
            and segment.newest_record >= timestamp
        ):
            segments.keep_open(segment)
            found = _find_in_segment(segment, timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def find_newest(segments: Segments, log_start_offset: int) -> TimestampOffset | None:
    """Return the first record, at or after the log start, that has the largest timestamp."""
    newest = NO_TIMESTAMP
    for segment in segments:
        if segment.base_offset < log_start_offset < segment.end_offset:
            segments.keep_open(segment)
            newest = max(newest, _newest_timestamp(segment, log_start_offset))
        elif segment.end_offset > log_start_offset:
            newest = max(newest, segment.newest_record)
    return None if newest < 0 else find(segments, newest, log_start_offset)


def _find_in_segment(
    segment: Segment, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    """Return a segment's first record, at or after the log start, that has this timestamp or a later one."""
    entry = segment.index.entry_for_timestamp(timestamp)
    if entry is None:
        return None
    for batch in segment.batches_from_entry(entry):
        if (
            batch.max_timestamp >= timestamp
            and batch.next_offset > log_start_offset
            and not batch.is_control
        ):
            found = _find_in_batch(segment, batch, timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def _newest_timestamp(segment: Segment, log_start_offset: int) -> int:
    """Return the largest timestamp of a segment's records at or after the log start, -1 without any."""
    newest = NO_TIMESTAMP
    for batch in segment.walk(0, segment.size):
        if (
            batch.next_offset > log_start_offset
            and batch.max_timestamp > newest
            and not batch.is_control
        ):
            # A log start in the middle of the batch may have taken the record that has it.
            whole = batch.base_offset >= log_start_offset
            newest = max(
                newest,
                batch.max_timestamp
                if whole
                else _newest_in_batch(segment, batch, log_start_offset),
            )
    return newest


def _newest_in_batch(segment: Segment, batch: BatchPosition, log_start_offset: int) -> int:
    header = segment.header_at(batch.position)
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    data = segment.reopen().read(batch.position, batch.end - batch.position)
    try:
        records = decode_batch(header, data, 0)
    except CorruptRecordError:
        return header.max_timestamp  # as below
    times = (record.timestamp for record in records if record.offset >= log_start_offset)
    return max(times, default=NO_TIMESTAMP)


def _find_in_batch(
    segment: Segment, batch: BatchPosition, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    header = segment.header_at(batch.position)
    epoch = header.partition_leader_epoch
    start = max(batch.base_offset, log_start_offset)
    whole = header.records_count > header.last_offset_delta  # else it has been compacted
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME and whole:
        return TimestampOffset(start, header.max_timestamp, epoch)
    data = segment.reopen().read(batch.position, batch.end - batch.position)
    try:
        records = decode_batch(header, data, 0)
    except CorruptRecordError:
        # The producer's doing, not the disk's: nobody looked at the records before. The batch is near enough.
        return TimestampOffset(start, header.max_timestamp, epoch)
    for record in records:
        # Nobody has looked at the offsets of records either: those beyond the batch are not there.
        if record.timestamp >= timestamp and start <= record.offset < batch.next_offset:
            return TimestampOffset(record.offset, record.timestamp, epoch)
    return None
