"""The schedule of one partition: a log of records that wait, beside the partition's own log, the target.

What has to be durable before what, so that a record is released once whatever happens:

    1. a delayed record is acknowledged when both logs are synced: its part of the schedule, and in the target the rest
       of its batch, which is also what a retry is recognised by
    2. it is released when it is due and its part of the schedule is synced: appended to the target, in a batch that
       names the last schedule offset in it
    3. when the target is synced a mark is appended to the schedule: released up to this cursor, as of that offset

Releases are strictly in the order of due time and schedule offset, so one cursor says what is released. After a crash
it is the cursor of the last mark, or of the last release that the target has above the offset of the mark; until a mark
is synced the target deletes nothing of the releases that it covers (`PartitionLog.keep_from`).

A new record never sorts before the cursor, for it is due now at the earliest, and now does not go back. Only between
two lives of the broker the clock may have been set back. Then the old cursor counts for the records scheduled by then,
and a new one begins, once the mark that says so is synced.

Everything below the first record that waits, and below the last mark, can be deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.core.log import MAX_OFFSET, SEQUENCE_MASK, AppendInfo, BatchEntry, PartitionLog
from headrace.core.scheduled.due_queue import DueQueue
from headrace.core.scheduled.needed import Chunks, NeededChunks, chunk_of, chunks_of
from headrace.core.scheduled.recovery import find_delivery_time, find_last_mark, find_releases
from headrace.core.scheduled.release import build_release
from headrace.core.scheduled.schedule_batch import (
    ENTRY,
    NOTHING,
    Cursor,
    Mark,
    Waiting,
    encode_mark,
    entries_of,
)
from headrace.errors import StorageError
from headrace.ports import Journal
from headrace.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    check_batch,
    iterate_headers,
)
from headrace.types import Buffer

RELEASE_BYTES: Final = 512 << 10
"""About how much one batch releases."""
RELEASE_RECORDS: Final = 2048
RELEASE_PAUSE_MS: Final = 5
"""Between two releases: where many records come, a batch each millisecond would cost more than they do."""
_BATCHES_AT_ONCE: Final = 2
_LOAD_BYTES: Final = 256 << 10
"""How much of the schedule is read at once while it is loaded."""
_MOST: Final = 0xFFFFFFFF

Append = Callable[[Buffer, int], AppendInfo]
"""Appends a batch at a time."""


class _Release(NamedTuple):
    """A batch in the target that no synced mark covers yet."""

    offset: int
    end_offset: int
    cursor: Cursor
    chunks: Chunks
    """Where in the schedule its records lie, which are needed until then: a start looks for the last of them."""


class Schedule:
    """Keeps and releases the delayed records of a partition. `load` comes first; `work` whenever something is due."""

    def __init__(
        self,
        target: PartitionLog,
        log: PartitionLog,
        queue: DueQueue,
        *,
        append_target: Append,
        append: Append,
        journal: Journal,
        in_memory: bool = False,
    ) -> None:
        """Use two logs.

        Args:
            target: The partition's log.
            log: The schedule's.
            queue: Empty, for the order of release.
            append_target: Appends to the target.
            append: Appends to the schedule.
            journal: Told of records that cannot be read.
            in_memory: Whether there is nothing to sync.
        """
        self.target = target
        self.log = log
        self._queue = queue
        self._append_target = append_target
        self._append = append
        self._journal = journal
        self._in_memory = in_memory
        self._mark = Mark(target.log_start_offset)
        """The last mark. Without one, any batch of the target may be a release."""
        self._marked_at = log.log_end_offset
        """The offset of the last mark in the schedule."""
        self._reached = NOTHING
        """The cursor, whether it is marked or not."""
        self._unmarked: deque[_Release] = deque()
        self._marked: deque[_Release] = deque()
        self._unsynced: deque[tuple[int, int]] = deque()
        """Marks that are not synced: their offset, and the target offset that they speak of."""
        self._released_ms = -RELEASE_PAUSE_MS

        self._synced_mark = log.log_start_offset
        self._needed = NeededChunks()
        """The parts of the schedule with records that wait, or belong to a release that no synced mark covers."""
        self._loading: tuple[int, int] | None = None
        """From where to where the schedule has yet to be read."""
        self._ready_offset = 0
        """Nothing is released before the schedule is synced up to here."""

    @property
    def loaded(self) -> bool:
        """Whether all that waits is known."""
        return self._loading is None

    @property
    def pending(self) -> int:
        """How many records wait, of those that are known."""
        return len(self._queue)

    @property
    def earliest_ms(self) -> int | None:
        """When the first of them is due, None without one."""
        entry = self._queue.peek()
        return None if entry is None else int(ENTRY.unpack(entry)[0])

    @property
    def in_memory(self) -> int:
        """How many entries of waiting records are in memory."""
        return self._queue.in_memory

    def bound(self, limit: int) -> None:
        """Have at most so many entries in memory, from the next one on."""
        self._queue.limit = min(self._queue.limit, limit)

    @property
    def unsettled(self) -> bool:
        """Whether something is released or marked that may be synced by now: then `work` has something to do."""
        return bool(self._unmarked or self._unsynced)

    # Loading

    def load(self, now_ms: int) -> None:
        """Find out what has been released. The waiting records are read step by step, by `work`.

        Raises:
            StorageError: The schedule cannot be read.
            ApiError: A mark cannot be written.
        """
        log = self.log
        self._keep()
        if log.log_end_offset == log.log_start_offset:
            # 1. The mark is synced. 2. A power cut takes what the target has not synced. 3. Releases take the offsets
            # of what is gone. A mark that speaks of these offsets would hide the releases from the next start.
            self._write_mark(Mark(self._target_synced), now_ms)
            return
        found = find_last_mark(self.log)
        if found is not None:
            self._marked_at, self._mark = found
            if self._marked_at < log.high_watermark:
                self._synced_mark = self._marked_at
        self._find_releases()
        self._loading = (log.log_start_offset, log.log_end_offset)
        self._reached = self._mark.cursor
        if now_ms < self._reached.due_ms:
            earlier = (*self._mark.earlier, (log.log_end_offset, self._reached))
            self._reached = NOTHING
            self._write_mark(Mark(self._target_synced, NOTHING, earlier), now_ms)
            self._ready_offset = log.log_end_offset

    def _find_releases(self) -> None:
        """Take note of what the target has released after the last mark."""
        offset = max(self._mark.target_offset, self.target.log_start_offset)
        found = find_releases(self.target, offset)
        if found is not None:
            first, last = found
            cursor = Cursor(self._due_of(last), last)
            self._mark = self._mark._replace(cursor=cursor)
            chunks = chunk_of(last)
            self._unmarked.append(_Release(first, self.target.log_end_offset, cursor, chunks))
            self._needed.add(chunks)
            self._keep()

    def _due_of(self, offset: int) -> int:
        due_ms = find_delivery_time(self.log, offset)
        if due_ms is None:
            raise StorageError(
                f"{self.log.directory} has no record {offset}, which {self.target.directory} has released"
            )
        return due_ms

    def _load_some(self) -> int:
        """Read some of what waits; return about how many records that was."""
        assert self._loading is not None
        offset, end = self._loading
        found = (
            self.log.read(offset, max_bytes=_LOAD_BYTES, up_to=end, minimum_one=True)
            if offset < end
            else None
        )
        if found is None:
            self._loading = None
            return 0
        data = memoryview(found.read())
        next_offset = offset
        for position, header in iterate_headers(data):
            next_offset = header.next_offset
            if not header.is_control:
                batch = data[position : position + header.size]
                check_batch(batch)
                self._add(batch, header.base_offset, found.position + position)
        self._loading = (next_offset, end) if next_offset > offset else None
        return next_offset - offset

    def _add(self, batch: Buffer, base_offset: int, position: int) -> None:
        mark = self._mark
        entries = entries_of(batch, base_offset, position)
        if mark.cursor != NOTHING:
            # The last record that was released is this, whatever its size.
            last = ENTRY.pack(*mark.cursor, _MOST, _MOST, _MOST)
            entries = [entry for entry in entries if entry > last]
        if mark.earlier:
            entries = [entry for entry in entries if not mark.covers(*ENTRY.unpack(entry)[:2])]
        self._queue.add(entries)
        self._needed.add(chunks_of(entries))

    # Scheduling

    def clock(self, now_ms: int) -> int:
        """Return the schedule's time: it never lies before what has been released."""
        return max(now_ms, self._reached.due_ms)

    def knows(self, header: BatchHeader, delayed: int) -> bool:
        """Whether its part of a producer's batch with so many delayed records has been scheduled."""
        return delayed > 0 and self._repeated(header, delayed) is not None

    def _repeated(self, header: BatchHeader, count: int) -> BatchEntry | None:
        first = header.base_sequence
        last = (first + count - 1) & SEQUENCE_MASK
        return self.log.producers.repeated(header.producer_id, header.producer_epoch, first, last)

    def add(self, later: bytes, now_ms: int) -> int:
        """Append a waiting batch, unless it repeats one, and return the offset that has to be durable.

        Raises:
            ApiError: It could not be written.
        """
        header = BatchHeader.parse(later)
        repeated = self._repeated(header, header.records_count)
        if repeated is not None:
            return repeated.last_offset + 1
        info = self._append(later, now_ms)
        position = self.log.segments.active.size - len(later)
        entries = entries_of(later, info.base_offset, position)
        self._queue.add(entries)
        self._needed.add(chunks_of(entries))
        return info.last_offset + 1

    # Releasing

    @property
    def next_deadline_ms(self) -> int | None:
        """When `work` has something to do next; it may have earlier when a high watermark moves."""
        if self._loading is not None:
            return 0
        if self.log.high_watermark < self._ready_offset:
            return None
        entry = self._queue.peek()
        if entry is None:
            return None
        due_ms, offset, *_ = ENTRY.unpack(entry)
        if offset >= self.log.high_watermark:
            return None
        return max(int(due_ms), self._released_ms + RELEASE_PAUSE_MS)

    def work(self, now_ms: int) -> int:
        """Release what is due, and mark what has been released durably; a bounded step of it.

        Returns:
            How many records that was about, a few thousand at most.

        Raises:
            StorageError: The schedule cannot be read.
            ApiError: Something could not be written; what is due is tried again the next time.
            OSError: The disk cannot be read.
        """
        self.settle(now_ms)
        if self._loading is not None:
            return self._load_some()
        released = 0
        if now_ms - self._released_ms < RELEASE_PAUSE_MS:
            return released
        for _ in range(_BATCHES_AT_ONCE):
            count = self._release(now_ms)
            if not count:
                if released:
                    self._released_ms = now_ms
                break
            released += count
        return released

    def settle(self, now_ms: int) -> None:
        """Take note of what is synced by now, and mark it.

        Raises:
            ApiError: The mark could not be written.
        """
        while self._unsynced and self._unsynced[0][0] < self.log.high_watermark:
            self._synced_mark, target_offset = self._unsynced.popleft()
            while self._marked and self._marked[0].end_offset <= target_offset:
                self._needed.remove(self._marked.popleft().chunks)
            self._keep()
        if self._unsynced:
            return  # one mark for each sync is enough
        synced, unmarked = self._target_synced, self._unmarked
        newest: _Release | None = None
        while unmarked and unmarked[0].end_offset <= synced:
            newest = unmarked.popleft()
            self._marked.append(newest)
        if newest is None:
            return
        try:
            mark = Mark(newest.end_offset, newest.cursor, self._earlier(newest.cursor))
            self._write_mark(mark, now_ms)
        except BaseException:
            unmarked.extendleft(reversed(self._marked))
            self._marked.clear()
            raise

    def _keep(self) -> None:
        """Have the target keep the releases that no synced mark covers."""
        first = self._marked or self._unmarked
        self.target.keep_from = first[0].offset if first else MAX_OFFSET

    def refresh(self, now_ms: int) -> None:
        """Once in a while: mark how far the target is known, so that a start has little to read; let go what is done.

        Raises:
            ApiError: The mark could not be written.
        """
        if (
            not self._unmarked
            and not self._unsynced
            and self._target_synced > self._mark.target_offset
        ):
            earlier = self._earlier(self._reached)
            self._write_mark(Mark(self._target_synced, self._reached, earlier), now_ms)
        if self._loading is None:
            start = min(self._needed.first_offset, self._synced_mark, self.log.high_watermark)
            if start > self.log.log_start_offset:
                self.log.advance_log_start_offset(start)

    @property
    def _target_synced(self) -> int:
        target = self.target
        return target.high_watermark if self._in_memory else target.synced_offset

    def _earlier(self, cursor: Cursor) -> tuple[tuple[int, Cursor], ...]:
        return tuple(each for each in self._mark.earlier if each[1] > cursor)

    def _write_mark(self, mark: Mark, now_ms: int) -> None:
        info = self._append(encode_mark(mark, now_ms), now_ms)
        self._mark, self._marked_at = mark, info.base_offset
        self._unsynced.append((info.base_offset, mark.target_offset))

    def _release(self, now_ms: int) -> int:
        """Release one batch; return how many records were due for it."""
        entries = self._take_due(now_ms)
        if not entries:
            return 0
        try:
            waiting = list(self._read(entries))
            if waiting:
                self._append_release(waiting, entries, now_ms)
            else:
                self._needed.remove(chunks_of(entries))
        except BaseException:
            self._queue.add(entries)
            raise
        return len(entries)

    def _append_release(self, waiting: list[Waiting], entries: list[bytes], now_ms: int) -> None:
        due_ms, offset, *_ = ENTRY.unpack(entries[-1])
        codec = self.target.config.codec
        batch = build_release(waiting, offset, self._largest_release, codec)
        info = self._append_target(batch, now_ms)
        self._reached = Cursor(due_ms, offset)
        end_offset = info.last_offset + 1
        self._unmarked.append(
            _Release(info.base_offset, end_offset, self._reached, chunks_of(entries))
        )
        self._keep()

    @property
    def _largest_release(self) -> int:
        """How large a batch of several records may be; one record is released whatever its size."""
        config = self.target.config
        return min(config.max_message_bytes, config.segment_bytes)

    def _take_due(self, now_ms: int) -> list[bytes]:
        high_watermark = self.log.high_watermark
        if high_watermark < self._ready_offset:
            return []
        limit = min(RELEASE_BYTES, self._largest_release - HEADER_SIZE)
        entries: list[bytes] = []
        size = 0
        while len(entries) < RELEASE_RECORDS and (entry := self._queue.peek()) is not None:
            due_ms, offset, _, record_size, _ = ENTRY.unpack(entry)
            size += record_size + 16  # of its new head, at most
            if due_ms > now_ms or offset >= high_watermark or (entries and size > limit):
                break
            entries.append(self._queue.pop())
        return entries

    def _read(self, entries: list[bytes]) -> Iterator[Waiting]:
        segments, segment = self.log.segments, self.log.segments.active
        for entry in entries:
            due_ms, offset, position, size, crc = ENTRY.unpack(entry)
            if segment.file is None or not segment.base_offset <= offset < segment.end_offset:
                segment = next(segments.since(offset))
                segments.keep_open(segment)
            record = segment.reopen().read(position, size)
            if crc32c(record) == crc:
                yield Waiting(due_ms, record)
            else:
                self._journal.error(
                    "delayed_record_damaged",
                    partition=str(self.target.topic_partition),
                    schedule_offset=offset,
                    due_ms=due_ms,
                )
