"""Reading from the two logs at a start what has been released: the last mark, and the releases after it."""

from __future__ import annotations

from headrace.core.log import PartitionLog, Segment
from headrace.core.scheduled.release import released_offset
from headrace.core.scheduled.schedule_batch import (
    ENTRY,
    Mark,
    ReleasePoint,
    decode_mark,
    entries_of,
)
from headrace.errors import StorageError
from headrace.records.batch import BatchHeader, check_batch


def find_last_mark(log: PartitionLog) -> tuple[int, Mark] | None:
    """Return the offset and the content of the last mark of a schedule, None without a mark.

    Raises:
        CorruptRecordError: The schedule is damaged.
    """
    for segment in reversed(log.segments.all):
        if not segment.size:
            continue
        loaded = segment.loaded
        found = _last_mark_in(segment)
        if not loaded:
            segment.unload()
        if found is not None:
            return found
    return None


def _last_mark_in(segment: Segment) -> tuple[int, Mark] | None:
    index = segment.index
    stop = segment.size
    for entry in reversed(range(len(index))):
        start = index.positions[entry]
        found: tuple[int, Mark] | None = None
        for batch in segment.walk(start, stop):
            if segment.header_at(batch.position).is_control:
                data = segment.reopen().read(batch.position, batch.end - batch.position)
                check_batch(data)
                found = batch.base_offset, decode_mark(data)
        if found is not None:
            return found
        stop = start
    return None


def marked_end(log: PartitionLog) -> int | None:
    """Return the target offset below which the last mark of a schedule covers all releases.

    The result is None if the mark is not committed, and 0 without a mark.
    """
    found = find_last_mark(log)
    if found is None:
        return 0
    offset, mark = found
    return mark.target_offset if offset < log.high_watermark else None


def find_releases(target: PartitionLog, offset: int) -> tuple[int, int, int] | None:
    """Look for releases in a partition's log from an offset on.

    Returns:
        The base offset of the first release, and the schedule offset and the delivery time of the last record that was
        released. None without a release.
    """
    first: int | None = None
    last: tuple[int, int] | None = None
    for segment in target.segments.since(offset):
        loaded = segment.loaded
        start = segment.locate(offset) if segment.end_offset > offset else None
        if start is not None:
            for batch in segment.walk(start, segment.size):
                header = segment.header_at(batch.position)
                released = released_offset(header)
                if released is not None:
                    first = batch.base_offset if first is None else first
                    last = released, header.max_timestamp
        if not loaded:
            segment.unload()
    return None if first is None or last is None else (first, *last)


def mark_of_cut_logs(mark: Mark, target: PartitionLog, log: PartitionLog) -> Mark | None:
    """Return the mark to write if an unclean election has taken the end of a log: other records get the lost offsets.

    Args:
        mark: The last mark.
        target: The log of the partition.
        log: The log of the schedule.

    Returns:
        The mark; None if neither log lacks records that the other one refers to.
    """
    found = find_releases(target, max(mark.target_offset, target.log_start_offset))
    end_offset = target.log_end_offset
    if found is not None and found[1] >= log.log_end_offset:
        released = ReleasePoint(found[2], log.log_end_offset - 1)
        return mark._replace(target_offset=end_offset, released=released)
    return mark._replace(target_offset=end_offset) if mark.target_offset > end_offset else None


def find_release_point(log: PartitionLog, offset: int) -> ReleasePoint:
    """Return the release point of a released record, given its offset in the schedule.

    Raises:
        StorageError: The schedule does not have the record.
    """
    found = log.read(offset, max_bytes=1, up_to=log.log_end_offset, minimum_one=True)
    if found is not None:
        batch = found.read()
        for entry in entries_of(batch, BatchHeader.parse(batch).base_offset, 0):
            due_ms, entry_offset, *_ = ENTRY.unpack(entry)
            if entry_offset == offset:
                return ReleasePoint(int(due_ms), offset)
    raise StorageError(f"{log.directory} has no record {offset}, which its partition has released")
