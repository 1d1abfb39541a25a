"""The segments of one log: oldest first, the active one last. Also which sealed segments are open."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.core.log.segments.open_segments import OpenSegments
from headrace.core.log.segments.segment import Segment
from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.types import FileRange

_OPEN_SEALED: Final = 3
"""The number of sealed segments of a log that stay open, the most recently used ones: indexes take memory."""


class Segments:
    """A list of segments that always has an active one."""

    __slots__ = (
        "_bases",
        "_doomed",
        "_open",
        "_segments",
        "active",
        "open_segments",
        "unnamed",
    )

    def __init__(self, segments: list[Segment], open_segments: OpenSegments) -> None:
        self._segments = segments
        self.open_segments = open_segments
        self.unnamed: Segment | None = None
        """A compacted segment whose file has no final name yet; it stays open until then. None without one."""
        self._bases = [segment.base_offset for segment in segments]
        self._open: list[Segment] = []
        self._doomed: list[Segment] = []
        for segment in segments:
            segment.open_segments = open_segments
        self.active = segments[-1]
        self.active.active = True
        if self.active.file is not None:
            open_segments.use(self.active)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def all(self) -> list[Segment]:
        """The list of the segments, which callers must not change."""
        return self._segments

    @property
    def start_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self._bases[0]

    def since(self, offset: int) -> Iterator[Segment]:
        """Yield the segment that holds an offset, and all later segments."""
        first = max(bisect_right(self._bases, offset) - 1, 0)
        for number in range(first, len(self._segments)):
            yield self._segments[number]

    def read(
        self, offset: int, *, max_bytes: int, up_to: int, minimum_one: bool
    ) -> FileRange | None:
        """Return whole batches from the one that holds `offset`, or follows it, on; see `ReadableLog.read`.

        Batches that compaction has emptied are skipped, unless nothing follows them. A client may give up after ten
        answers in a row without a record: librdkafka takes them for batches that are too large to be sent.
        """
        empty: FileRange | None = None
        for segment in self.since(offset):
            if segment.base_offset >= up_to:
                break
            self.keep_open(segment)
            while found := segment.read(
                offset, max_bytes=max_bytes, up_to=up_to, minimum_one=minimum_one
            ):
                records, next_offset = _without_empty_start(found)
                if records is not None:
                    return records
                empty, offset = found, next_offset
            if segment.end_offset > offset:
                break
        return empty

    def add(self, segment: Segment) -> None:
        """Make a new segment the active one, and seal the one before."""
        sealed = self.active
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment
        sealed.active, segment.active = False, True
        self.keep_open(sealed)

    def keep_open(self, segment: Segment) -> None:
        """Note that a segment is used. It stays open, and the least recently used sealed segment may close."""
        recent = self._open
        if segment is self.active or segment is self.unnamed:
            return
        self.open_segments.use(segment)
        if recent and recent[-1] is segment:
            return
        if segment in recent:
            recent.remove(segment)
        recent.append(segment)
        if len(recent) > _OPEN_SEALED:
            recent.pop(0).unload()

    def drop_oldest(self, count: int) -> list[Segment]:
        """Remove the oldest segments from the list. Their files stay until `purge`."""
        dropped, self._segments = self._segments[:count], self._segments[count:]
        del self._bases[:count]
        self._doomed += dropped
        return dropped

    def cut_end(self, kept: int, active: Segment) -> list[Segment]:
        """Remove all but the first segments from the list, and continue with another active segment.

        Returns:
            The removed segments, newest first. Their files stay.
        """
        removed = self._segments[kept:]
        self._segments[kept:] = [active]
        self._bases[kept:] = [active.base_offset]
        self._open = [segment for segment in self._open if segment not in removed]
        self.active.active, active.active = False, True
        self.active, active.open_segments = active, self.open_segments
        return removed[::-1]

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Return whether these sealed segments are all still in the list, one after the other."""
        base_offset = segments[0].base_offset
        first = bisect_right(self._bases, base_offset) - 1
        found = self._segments[max(first, 0) : first + len(segments)]
        same = all(a is b for a, b in zip(found, segments, strict=False))
        return same and len(found) == len(segments) and found[-1] is not self.active

    def replace(self, segments: Sequence[Segment], replacement: Segment) -> None:
        """Replace segments that `holds` has found by a compacted segment. Readers of the old segments can finish.

        The file of the compacted segment gets its final name later: see `replacement` and `settle`.
        """
        first = bisect_right(self._bases, segments[0].base_offset) - 1
        self._segments[first : first + len(segments)] = [replacement]
        self._bases[first : first + len(segments)] = [replacement.base_offset]
        for segment in segments:
            if segment in self._open:
                self._open.remove(segment)
            segment.unload()
        self.unnamed = replacement

    def settle(self) -> Segment | None:
        """Note that the file of the compacted segment has its final name. From now on the segment may be closed.

        Returns:
            The segment, None if there is none.
        """
        segment, self.unnamed = self.unnamed, None
        if segment is not None:
            segment.write_sidecars()
            segment.unload()
            segment.open_segments = self.open_segments
        return segment

    @property
    def has_doomed(self) -> bool:
        """Whether `purge` has something to remove."""
        return bool(self._doomed)

    def purge(self) -> None:
        """Remove the files of dropped segments, oldest first, up to a segment whose file has no final name yet."""
        while self._doomed and self._doomed[0] is not self.unnamed:
            segment = self._doomed[0]
            if segment in self._open:
                self._open.remove(segment)
            segment.remove()
            del self._doomed[0]

    def unload(self) -> None:
        """Close all files. Ranges that readers hold keep theirs open."""
        for segment in (self.active, *self._open, *self._doomed):
            segment.unload()
        if self.unnamed is not None:
            self.unnamed.unload()
        self._open.clear()


def _without_empty_start(found: FileRange) -> tuple[FileRange | None, int]:
    """Return the part of a range from its first batch with records on.

    Returns:
        The part, or None if no batch has records; and the offset after the batches that were skipped.
    """
    position, end, next_offset = found.position, found.position + found.size, -1
    while position < end:
        header = BatchHeader.parse(b"".join(found.file.buffers(position, HEADER_SIZE)))
        if header.records_count:
            return FileRange(found.file, position, end - position), next_offset
        position += header.size
        next_offset = header.next_offset
    return None, next_offset
