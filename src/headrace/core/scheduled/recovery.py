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


def find_releases(target: PartitionLog, offset: int) -> tuple[int, int] | None:
    """Look for releases in a partition's log from an offset on.

    Returns:
        The base offset of the first release, and the schedule offset of the last record that was released. None
        without a release.
    """
    first: int | None = None
    last: int | None = None
    for segment in target.segments.since(offset):
        loaded = segment.loaded
        start = segment.locate(offset) if segment.end_offset > offset else None
        if start is not None:
            for batch in segment.walk(start, segment.size):
                released = released_offset(segment.header_at(batch.position))
                if released is not None:
                    first, last = batch.base_offset if first is None else first, released
        if not loaded:
            segment.unload()
    return None if first is None or last is None else (first, last)


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
