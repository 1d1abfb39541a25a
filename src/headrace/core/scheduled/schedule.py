"""The schedule of one partition: a log of scheduled records beside the partition's own log, which is the target.

Each record is released exactly once because of the order in which things become durable:

    1. A scheduled record is acknowledged when both logs are committed: its part of the batch in the schedule, and in
       the target the rest of the batch, by which a retry is recognised.
    2. The record is released when its delivery time has come and its part of the schedule is committed. A batch that
       contains the last schedule offset is appended to the target.
    3. When the release is committed and synced in the target, a mark is appended to the schedule. It contains the
       release point, and the target offset below which the mark covers all releases.

Releases are strictly in the order of delivery time and schedule offset. So one release point, the last released record,
says what has been released. After a crash the release point is that of the last mark, or that of the last release in
the target above the offset of the mark. Until a mark is committed the target deletes nothing of the releases that the
mark covers (`PartitionLog.keep_from`).

A new record never sorts before the release point: its delivery time is now at the earliest, and the time never goes
back. Only between two runs of the broker the clock may have been set back. Then the old release point applies to the
records scheduled before the restart, and a new release point begins once the mark that says so is committed.

"Committed" means that the high watermark has passed it. So every broker that may lead next has it, and continues with
the release point that its own logs show. A release that was not committed may be gone; then it is repeated.

Everything below the first waiting record, and below the last mark, can be deleted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.core.log import MAX_OFFSET, SEQUENCE_MASK, AppendInfo, BatchEntry, PartitionLog
from headrace.core.scheduled.due_queue import DueQueue
from headrace.core.scheduled.needed import Chunks, NeededChunks, chunk_of, chunks_of
from headrace.core.scheduled.recovery import (
    find_last_mark,
    find_release_point,
    find_releases,
    mark_of_cut_logs,
)
from headrace.core.scheduled.release import build_release
from headrace.core.scheduled.schedule_batch import (
    ENTRY,
    NOTHING,
    Mark,
    ReleasePoint,
    Waiting,
    encode_mark,
    entries_of,
)
from headrace.ports import Journal
from headrace.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    check_batch,
    iterate_headers,
)
from headrace.types import Buffer

RELEASE_BYTES: Final = 512 << 10
"""The approximate size in bytes of the records in one release."""
RELEASE_RECORDS: Final = 2048
RELEASE_PAUSE_MS: Final = 5
"""The pause between two releases in milliseconds. With many records, one batch each millisecond would be too expensive.
"""
_BATCHES_AT_ONCE: Final = 2
_LOAD_BYTES: Final = 256 << 10
"""The number of bytes that are read at a time while the schedule is loaded."""
_MOST: Final = 0xFFFFFFFF

Append = Callable[[Buffer, int], AppendInfo]
"""Appends a batch, with the time of the append in milliseconds."""


class _Release(NamedTuple):
    """A release in the target that no committed mark covers yet."""

    offset: int
    end_offset: int
    released: ReleasePoint
    chunks: Chunks
    """The parts of the schedule with its records. They are needed until then: a start looks up the last of the records.
    """


class Schedule:
    """Keeps and releases the scheduled records of a partition.

    `load` is called first, and `work` whenever something is due.
    """

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
        is_cut: bool = False,
    ) -> None:
        """Use two logs.

        Args:
            target: The partition's log.
            log: The log of the schedule.
            queue: An empty queue for the order of release.
            append_target: Appends to the target.
            append: Appends to the schedule.
            journal: Logs records that cannot be read.
            in_memory: Whether the logs are in memory, so that nothing is ever synced.
            is_cut: Whether an unclean election may have taken committed records from the end of either log.
        """
        self.target = target
        self.log = log
        self._queue = queue
        self._append_target = append_target
        self._append = append
        self._journal = journal
        self._in_memory = in_memory
        self._is_cut = is_cut
        self._mark = Mark(target.log_start_offset)
        """The last mark. Before the first mark any batch of the target may be a release."""
        self._marked_at = log.log_end_offset
        """The offset of the last mark in the schedule."""
        self._reached = NOTHING
        """The release point, whether a mark has it or not."""
        self._unmarked: deque[_Release] = deque()
        self._marked: deque[_Release] = deque()
        self._uncommitted: deque[tuple[int, int]] = deque()
        """The marks that are not committed: the offset of the mark, and the target offset in it."""
        self._released_ms = -RELEASE_PAUSE_MS

        self._committed_mark = log.log_start_offset
        self._needed = NeededChunks()
        """The parts of the schedule with records that wait, or belong to a release that no committed mark covers."""
        self._loading: tuple[int, int] | None = None
        """The offsets from and up to which the schedule has yet to be read; None when it is loaded."""
        self._ready_offset = 0
        """The offset up to which the schedule has to be committed before anything is released."""

    @property
    def loaded(self) -> bool:
        """Whether all waiting records are known."""
        return self._loading is None

    @property
    def pending(self) -> int:
        """The number of waiting records that are known."""
        return len(self._queue)

    @property
    def earliest_ms(self) -> int | None:
        """The delivery time of the first waiting record in milliseconds, None without one."""
        entry = self._queue.peek()
        return None if entry is None else int(ENTRY.unpack(entry)[0])

    @property
    def in_memory(self) -> int:
        """The number of entries of waiting records in memory."""
        return self._queue.in_memory

    def bound(self, limit: int) -> None:
        """Keep at most `limit` entries in memory from the next added one on."""
        self._queue.limit = min(self._queue.limit, limit)

    @property
    def unsettled(self) -> bool:
        """Whether a release or a mark may be committed by now, so that `work` has something to do."""
        return bool(self._unmarked or self._uncommitted)

    def end(self) -> None:
        """Forget the waiting records: this broker leads the partition no longer."""
        self._queue.clear()

    # Loading

    def load(self, now_ms: int) -> None:
        """Find out what has been released. The waiting records are read later, step by step, by `work`.

        Raises:
            StorageError: The schedule cannot be read.
            ApiError: A mark cannot be written.
        """
        log = self.log
        self._keep()
        if log.log_end_offset == log.log_start_offset:
            # (1) The mark is synced. (2) A power cut removes what the target has not synced. (3) Releases take the
            # offsets of what is gone. If the mark named these offsets, it would hide the releases from the next start.
            self._write_mark(Mark(self._target_committed), now_ms)
            return
        found = find_last_mark(self.log)
        if found is not None:
            self._marked_at, self._mark = found
            self._found_mark()
        self._find_releases(now_ms)
        self._loading = (log.log_start_offset, log.log_end_offset)
        self._reached = self._mark.released
        if now_ms < self._reached.due_ms:
            earlier = (*self._mark.earlier, (log.log_end_offset, self._reached))
            self._reached = NOTHING
            self._write_mark(Mark(self._target_committed, NOTHING, earlier), now_ms)
            self._ready_offset = log.log_end_offset

    def _found_mark(self) -> None:
        """Take the last mark for committed only if it is: another replica may lead without it.

        Until then the target keeps all releases that the mark may cover.
        """
        if self._marked_at < self.log.high_watermark:
            self._committed_mark = self._marked_at
            return
        mark, start = self._mark, self.target.log_start_offset
        self._uncommitted.append((self._marked_at, mark.target_offset))
        self._marked.append(_Release(start, mark.target_offset, mark.released, Counter()))
        self._keep()

    def _find_releases(self, now_ms: int) -> None:
        """Find the releases in the target after the last mark."""
        cut = mark_of_cut_logs(self._mark, self.target, self.log) if self._is_cut else None
        if cut is not None:
            self._write_mark(cut, now_ms)
            self._ready_offset = self.log.log_end_offset
        offset = max(self._mark.target_offset, self.target.log_start_offset)
        found = find_releases(self.target, offset)
        if found is not None:
            first, last, _ = found
            point = find_release_point(self.log, last)
            self._mark = self._mark._replace(released=point)
            chunks = chunk_of(last)
            self._unmarked.append(_Release(first, self.target.log_end_offset, point, chunks))
            self._needed.add(chunks)
            self._keep()

    def _load_some(self) -> int:
        """Read some of the waiting records, and return about how many."""
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
        if mark.released != NOTHING:
            # The last released record sorts below this entry, whatever its size.
            last = ENTRY.pack(*mark.released, _MOST, _MOST, _MOST)
            entries = [entry for entry in entries if entry > last]
        if mark.earlier:
            entries = [entry for entry in entries if not mark.covers(*ENTRY.unpack(entry)[:2])]
        self._queue.add(entries)
        self._needed.add(chunks_of(entries))

    # Scheduling

    def clock(self, now_ms: int) -> int:
        """Return the schedule's time: the clock, but never before the release point."""
        return max(now_ms, self._reached.due_ms)

    def knows(self, header: BatchHeader, delayed: int) -> bool:
        """Return whether the schedule has its part of a producer's batch with `delayed` scheduled records."""
        return delayed > 0 and self._repeated(header, delayed) is not None

    def _repeated(self, header: BatchHeader, count: int) -> BatchEntry | None:
        first = header.base_sequence
        last = (first + count - 1) & SEQUENCE_MASK
        return self.log.producers.repeated(header.producer_id, header.producer_epoch, first, last)

    def add(self, later: bytes, now_ms: int) -> int:
        """Append a batch of scheduled records, unless it is a retry, and return the offset that has to be durable.

        Raises:
            ApiError: The batch could not be written.
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
        """The time at which `work` has something to do next, in milliseconds; None for none.

        A high watermark that moves may give `work` something to do earlier.
        """
        if self._loading is not None:
            return 0
        if self._releasable_end < self._ready_offset:
            return None
        entry = self._queue.peek()
        if entry is None:
            return None
        due_ms, offset, *_ = ENTRY.unpack(entry)
        if offset >= self._releasable_end:
            return None
        return max(int(due_ms), self._released_ms + RELEASE_PAUSE_MS)

    def work(self, now_ms: int) -> int:
        """Release what is due, and mark what has been released durably, in a bounded step.

        Returns:
            About how many records were processed, a few thousand at most.

        Raises:
            StorageError: The schedule cannot be read.
            ApiError: A batch could not be written. The release is retried the next time.
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
        """Process what has been committed meanwhile, and mark it.

        Raises:
            ApiError: The mark could not be written.
        """
        while self._uncommitted and self._uncommitted[0][0] < self.log.high_watermark:
            self._committed_mark, target_offset = self._uncommitted.popleft()
            while self._marked and self._marked[0].end_offset <= target_offset:
                self._needed.remove(self._marked.popleft().chunks)
            self._keep()
        if self._uncommitted:
            return  # one mark for each sync is enough
        committed, unmarked = self._target_committed, self._unmarked
        newest: _Release | None = None
        while unmarked and unmarked[0].end_offset <= committed:
            newest = unmarked.popleft()
            self._marked.append(newest)
        if newest is None:
            return
        try:
            mark = Mark(newest.end_offset, newest.released, self._earlier(newest.released))
            self._write_mark(mark, now_ms)
        except BaseException:
            unmarked.extendleft(reversed(self._marked))
            self._marked.clear()
            raise

    def _keep(self) -> None:
        """Make the target keep the releases that no committed mark covers."""
        first = self._marked or self._unmarked
        self.target.keep_from = first[0].offset if first else MAX_OFFSET

    def refresh(self, now_ms: int) -> None:
        """Do periodic work: mark how far the target was searched, and delete what is not needed.

        The mark makes the next start short.

        Raises:
            ApiError: The mark could not be written.
        """
        if (
            not self._unmarked
            and not self._uncommitted
            and self._target_committed > self._mark.target_offset
        ):
            earlier = self._earlier(self._reached)
            self._write_mark(Mark(self._target_committed, self._reached, earlier), now_ms)
        if self._loading is None:
            start = min(self._needed.first_offset, self._committed_mark, self.log.high_watermark)
            if start > self.log.log_start_offset:
                self.log.advance_log_start_offset(start)

    @property
    def _target_committed(self) -> int:
        """The offset below which no failure loses a release: of the leader, or of the power of all replicas.

        A high watermark alone is not enough: with the durability `os` it passes what is not synced.
        """
        target = self.target
        if self._in_memory:
            return target.high_watermark
        return min(target.high_watermark, target.synced_offset)

    def _earlier(self, point: ReleasePoint) -> tuple[tuple[int, ReleasePoint], ...]:
        return tuple(each for each in self._mark.earlier if each[1] > point)

    def _write_mark(self, mark: Mark, now_ms: int) -> None:
        info = self._append(encode_mark(mark, now_ms), now_ms)
        self._mark, self._marked_at = mark, info.base_offset
        self._uncommitted.append((info.base_offset, mark.target_offset))

    def _release(self, now_ms: int) -> int:
        """Release one batch, and return how many records were due for it."""
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
        self._reached = ReleasePoint(due_ms, offset)
        end_offset = info.last_offset + 1
        self._unmarked.append(
            _Release(info.base_offset, end_offset, self._reached, chunks_of(entries))
        )
        self._keep()

    @property
    def _largest_release(self) -> int:
        """The largest size in bytes of a release with several records. One record may be larger."""
        config = self.target.config
        return min(config.max_message_bytes, config.segment_bytes)

    def _take_due(self, now_ms: int) -> list[bytes]:
        releasable_end = self._releasable_end
        if releasable_end < self._ready_offset:
            return []
        limit = min(RELEASE_BYTES, self._largest_release - HEADER_SIZE)
        entries: list[bytes] = []
        size = 0
        while len(entries) < RELEASE_RECORDS and (entry := self._queue.peek()) is not None:
            due_ms, offset, _, record_size, _ = ENTRY.unpack(entry)
            size += record_size + 16  # the largest size of its new head
            if due_ms > now_ms or offset >= releasable_end or (entries and size > limit):
                break
            entries.append(self._queue.pop())
        return entries

    @property
    def _releasable_end(self) -> int:
        """The offset below which records may be released: they are committed, so every next leader has them."""
        return self.log.high_watermark

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
