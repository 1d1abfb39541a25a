"""One segment of a log: a file of record batches, and its sparse index.

The last segment of a log is active: it takes appends, and its index is in memory. The others are sealed. A sealed
segment opens its file and index when it is first read, and may close both again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headrace.core.log.files.caches import write_cache
from headrace.core.log.files.paths import segment_path
from headrace.core.log.index.sidecar import Sidecar
from headrace.core.log.index.sidecars import SIDECARS
from headrace.core.log.index.sparse_index import SPARSE_INDEX, IndexedPart, SparseIndex
from headrace.core.log.segments.open_segments import OpenSegments
from headrace.core.log.segments.segment_expiries import SegmentExpiries
from headrace.errors import CorruptRecordError
from headrace.ports import File, FileSystem
from headrace.records.batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MIN_BATCH_LENGTH,
    BatchHeader,
)
from headrace.types import NO_TIMESTAMP, Buffer, FileRange

_WALK: Final = struct.Struct(">qi9xhi8xq")
"""Base offset, batch length, attributes, last offset delta, max timestamp."""
_unpack_walk: Final = _WALK.unpack_from
_WALK_CHUNK: Final = 8 << 10
_MAX_HINTS: Final = 64


class BatchPosition(NamedTuple):
    """The place of a batch: bytes `position` to `end`, offsets `base_offset` to `next_offset` - 1."""

    position: int
    end: int
    base_offset: int
    next_offset: int
    max_timestamp: int
    is_control: int
    """Not 0 if the batch is a control batch."""


class Segment:
    """One segment. `end_offset` is the offset after its last record: the base offset of the next segment."""

    __slots__ = (
        "_files",
        "_hints",
        "_index",
        "_max_timestamps",
        "active",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "expiries",
        "file",
        "first_timestamp",
        "indexed_size",
        "interval",
        "looked_through_ms",
        "open_segments",
        "size",
        "synced_offset",
    )

    def __init__(
        self, files: FileSystem, directory: str, base_offset: int, *, interval: int, created_ms: int
    ) -> None:
        self._files = files
        self._index: SparseIndex | None = None
        self._hints: dict[int, int] = {}
        self._max_timestamps: tuple[int, int] | None = None
        self.active = False
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.directory = directory
        self.end_offset = base_offset
        self.expiries = SegmentExpiries(files, directory, base_offset)
        self.file: File | None = None
        self.first_timestamp = NO_TIMESTAMP
        self.indexed_size = 0
        """The size in bytes of the part of the segment that the index file describes."""
        self.interval = interval
        self.looked_through_ms = created_ms
        """The time of the last cleaning of expired records that read the segment; when the segment was created before
        the first."""
        self.open_segments: OpenSegments | None = None
        """The bound of open segments, which is notified when this segment opens and closes, and may close it. None for
        no bound."""
        self.size = 0
        self.synced_offset = base_offset
        """The offset below which no data in the file of an active segment waits for a sync."""

    def __repr__(self) -> str:
        return f"Segment({self.path}, size={self.size}, end_offset={self.end_offset})"

    @property
    def path(self) -> str:
        """The path of the segment's file."""
        return segment_path(self.directory, self.base_offset)

    def sidecar_path(self, sidecar: Sidecar) -> str:
        """Return the path of one of the files beside the segment."""
        return sidecar.path(self.directory, self.base_offset)

    @property
    def loaded(self) -> bool:
        """Whether the index is in memory. The file of an active segment may be closed even so."""
        return self._index is not None

    @property
    def index(self) -> SparseIndex:
        """The index, read from its file if it is not in memory."""
        if self._index is None:
            self.load()
        assert self._index is not None
        return self._index

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, markers included; -1 without any."""
        return max(self._newest())

    @property
    def newest_record(self) -> int:
        """The largest timestamp of the records in the segment, -1 without any."""
        return self._newest()[0]

    @property
    def newest_marker(self) -> int:
        """The largest timestamp of the markers in the segment, -1 without any marker."""
        return self._newest()[1]

    def _newest(self) -> tuple[int, int]:
        """Return the largest timestamp of the records, and that of the markers."""
        if self._index is not None:
            return self._index.newest_record, self._index.newest_marker
        if not self.size:
            return NO_TIMESTAMP, NO_TIMESTAMP
        if self._max_timestamps is None:
            self.load()
            self.unload()
        assert self._max_timestamps is not None
        return self._max_timestamps

    def create(self) -> None:
        """Create the file of a new segment. The caller has to sync its directory."""
        self.file = self._files.open(self.path, create=True)
        self._index = SparseIndex(self.interval)
        self._opened()

    def reopen(self) -> File:
        """Return the file, and open it if it is closed. Then the index is loaded too, unless it is in memory."""
        if self.file is None:
            if self._index is None:
                self.load()
            else:
                self.file = self._files.open(self.path)
                self._opened()
        assert self.file is not None
        return self.file

    def _opened(self) -> None:
        if self.open_segments is not None:
            self.open_segments.use(self)

    def release(self) -> bool:
        """Close the segment because too many are open. Returns false, without a change, if it has to stay open."""
        if not self.active:
            self.unload()
            return True
        if self.synced_offset < self.end_offset:
            return False
        self._close_file()
        return True

    def measure(self, end_offset: int) -> None:
        """Set the size and the end offset of a sealed segment without loading its index."""
        self.end_offset = end_offset
        self.size = self._files.open(self.path).size

    def load(self) -> None:
        """Open the file and the index of a sealed segment, and rebuild an index that does not fit.

        Raises:
            CorruptRecordError: The file is damaged, or does not end where the next segment begins.
        """
        expected = self.end_offset
        self.file = file = self._files.open(self.path)
        self.size = file.size
        try:
            if not self.load_index():
                self._rebuild_index()
                self.write_index()
            self._check_end(expected)
        except CorruptRecordError:
            self.unload()
            self.end_offset = expected
            raise
        self._opened()

    def _check_end(self, expected: int) -> None:
        if self.end_offset != expected:
            raise CorruptRecordError(
                f"{self.path} ends at offset {self.end_offset}, the next begins at {expected}"
            )

    def load_index(self) -> bool:
        """Read the index file. Returns false, without a change, unless it describes the segment as it is."""
        indexed = self.read_index()
        if indexed is None or indexed.size != self.size:
            return False
        self._index, self.indexed_size, self.end_offset, self.first_timestamp = indexed
        return True

    def read_index(self) -> IndexedPart | None:
        """Return what the index file describes: the segment as it is, or its beginning.

        None if the file is missing or damaged.
        """
        return SparseIndex.decode(
            self._files.read_file(self.sidecar_path(SPARSE_INDEX)),
            base_offset=self.base_offset,
            interval=self.interval,
        )

    def _rebuild_index(self) -> None:
        index = SparseIndex(self.interval)
        self.first_timestamp = NO_TIMESTAMP
        self.end_offset = self.base_offset
        for batch in self.walk(0, self.size):
            if not batch.position:
                self.first_timestamp = batch.max_timestamp
            index.add(batch.base_offset, batch.position, batch.max_timestamp, batch.is_control)
            self.end_offset = batch.next_offset
        self._index = index

    def unload(self) -> None:
        """Close the file and the index of a sealed segment. Ranges that readers hold keep the file open."""
        if self._index is not None:
            self._max_timestamps = self._newest()
        self.expiries.unload(self.size)
        self._close_file()
        self._index = None
        self._hints.clear()

    def _close_file(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        if self.open_segments is not None:
            self.open_segments.forget(self)

    def write_index(self) -> None:
        """Write the index file. If the write fails, or the file gets lost, the index is rebuilt when it is needed."""
        content = self.index.encode(
            size=self.size,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            first_timestamp=self.first_timestamp,
        )
        write_cache(self._files, self.sidecar_path(SPARSE_INDEX), content)
        self.indexed_size = self.size

    def write_sidecars(self) -> None:
        """Write the files beside the segment that the segment fills itself. A write may fail."""
        self.write_index()
        self.expiries.write()

    def adopt(self, file: File, index: SparseIndex, size: int, end_offset: int, first: int) -> None:
        """Use the file and the index that a recovery or a compaction has made."""
        self.file, self._index = file, index
        self.size, self.end_offset, self.first_timestamp = size, end_offset, first

    def append(
        self,
        buffers: Sequence[Buffer],
        size: int,
        base_offset: int,
        end_offset: int,
        max_timestamp: int,
        *,
        is_control: int,
    ) -> None:
        """Append one batch. `is_control` is not 0 for a control batch.

        Raises:
            OSError: The batch could not be written. The segment is unchanged.
        """
        file, index = self.file, self._index
        assert file is not None
        assert index is not None
        file.append(buffers)
        position = self.size
        if not position:
            self.first_timestamp = max_timestamp
        index.add(base_offset, position, max_timestamp, is_control)
        self.size = position + size
        self.end_offset = end_offset

    def is_older(self, age_ms: int, max_timestamp: int, now_ms: int) -> bool:
        """Return whether the segment began more than `age_ms` before a batch with a timestamp.

        If one of the two has no timestamp, the time since the segment was created counts.
        """
        if self.first_timestamp < 0 or max_timestamp < 0:
            return now_ms - self.created_ms > age_ms
        return max_timestamp - self.first_timestamp > age_ms

    def end_before(self, position: int) -> int:
        """Return the offset after the last batch before a byte position; the base offset if no batch lies there."""
        end_offset = self.base_offset
        if position:
            for batch in self.walk(self.index.last_position_within(position - 1), position):
                end_offset = batch.next_offset
        return end_offset

    def forget_end(self, position: int) -> None:
        """Forget the batches from a byte position on. The caller cuts the file there, and removes the sidecars."""
        self.end_offset = self.end_before(position)
        start = self.index.cut_at(position)
        for batch in self.walk(start, position):
            self.index.add(batch.base_offset, batch.position, batch.max_timestamp, batch.is_control)
        self.expiries.forget_end(self.size, position)
        self.size, self.indexed_size = position, 0
        self._hints.clear()
        if not position:
            self.first_timestamp = NO_TIMESTAMP

    def remember_end(self) -> None:
        """Keep the byte position of the end offset, because a reader is about to ask for it."""
        hints = self._hints
        if len(hints) >= _MAX_HINTS:
            del hints[next(iter(hints))]
        hints[self.end_offset] = self.size

    def remove(self) -> None:
        """Remove the files. Ranges that readers hold stay readable."""
        self.remove_names()
        self.unload()

    def remove_names(self) -> None:
        """Remove the names of the files. The segment stays open."""
        self._files.remove(self.path)
        for sidecar in SIDECARS:
            self._files.remove(self.sidecar_path(sidecar))

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, up_to: int, minimum_one: bool
    ) -> FileRange | None:
        """Return whole batches from the one that holds `offset`, or follows it, on; see `ReadableLog.read`."""
        if self._index is None:
            self.load()
        position = self.locate(offset)
        if position is None:
            return None
        limit = self.size
        if up_to < self.end_offset:
            limit = self._start_of(up_to)
        if limit <= position:
            return None
        end = limit
        if limit - position > max_bytes:
            end = self._cut(position, limit, max_bytes, minimum_one=minimum_one)
            if end == position:
                return None
        elif end == self.size:
            self.remember_end()
        return FileRange(self.reopen(), position, end - position)

    def locate(self, offset: int) -> int | None:
        """Return the byte position of the first batch whose last offset is at least `offset`, None without one."""
        hint = self._hints.get(offset)
        if hint is not None:
            return hint if hint < self.size else None
        index = self.index
        entry = index.entry_for_offset(offset)
        if entry < 0:
            return 0 if self.size else None
        position = index.positions[entry]
        if index.offsets[entry] == offset:
            return position
        stop = index.positions[entry + 1] if entry + 1 < len(index) else self.size
        for batch in self.walk(position, stop):
            if batch.next_offset > offset:
                return batch.position
        return stop if stop < self.size else None

    def _start_of(self, offset: int) -> int:
        position = self.locate(offset)
        return self.size if position is None else position

    def _cut(self, position: int, limit: int, max_bytes: int, *, minimum_one: bool) -> int:
        # Return the end of the batches that fit. An index entry that fills at least half of the range is good enough:
        # the reader comes back for the rest, at an offset that the index knows.
        indexed = self.index.last_position_within(position + max_bytes)
        if indexed - position > max_bytes >> 1:
            return indexed
        end = max(indexed, position)
        for batch in self.walk(end, limit):
            if batch.end - position > max_bytes and not (minimum_one and end == position):
                break
            end = batch.end
        return end

    def walk(self, position: int, stop: int) -> Iterator[BatchPosition]:
        """Yield the batches from the byte position of a batch up to `stop`. Only headers are read.

        Raises:
            CorruptRecordError: A batch does not end where the next may begin.
        """
        read, size = self.reopen().read, self.size
        chunk, chunk_start = b"", position
        while position < stop:
            at = position - chunk_start
            if at + _WALK.size > len(chunk):
                chunk, chunk_start, at = read(position, _WALK_CHUNK), position, 0
                if len(chunk) < HEADER_SIZE:
                    raise self._damaged(position, "is cut off")
            base_offset, length, attributes, delta, max_timestamp = _unpack_walk(chunk, at)
            end = position + LOG_OVERHEAD + length
            if length < MIN_BATCH_LENGTH or end > size or delta < 0:
                raise self._damaged(position, "has an impossible length")
            next_offset, is_control = base_offset + delta + 1, attributes & CONTROL_FLAG
            yield BatchPosition(position, end, base_offset, next_offset, max_timestamp, is_control)
            position = end

    def header_at(self, position: int) -> BatchHeader:
        """Return the full header of the batch at a byte position."""
        return BatchHeader.parse(self.reopen().read(position, HEADER_SIZE))

    def batches_from_entry(self, entry: int) -> Iterator[BatchPosition]:
        """Yield the batches from an index entry on."""
        return self.walk(self.index.positions[entry], self.size)

    def _damaged(self, position: int, what: str) -> CorruptRecordError:
        return CorruptRecordError(f"{self.path}: the batch at byte {position} {what}")
