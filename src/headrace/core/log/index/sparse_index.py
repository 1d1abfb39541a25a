"""The sparse index of a segment: where batches lie, by offset and by time.

There is one entry for every `interval` bytes: the base offset and position of a batch, and the largest timestamp of all
batches up to the next entry. A search begins at the entry before an offset, or at the first entry with a large enough
timestamp, and walks a few batch headers. Offsets, positions and timestamps never decrease.

The file is a cache. It has a CRC and the size of the segment that it describes. If one of them does not fit, the index
is rebuilt from the segment. The file is never synced.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from headrace.core.log.index.sidecar import Sidecar
from headrace.types import NO_TIMESTAMP

SPARSE_INDEX: Final = Sidecar(".index", b"HRIX", 2, header_fields=5, columns=3)
"""Header: segment size, base offset, end offset, first timestamp, newest marker.

Columns: offsets, positions, timestamps.
"""


class SparseIndex:
    """The entries of one segment in three parallel arrays.

    Only timestamps of records count, not those of control batches. A control batch has the time at which the broker
    wrote it, which may be far from the records around it if these have the times of events.
    """

    __slots__ = ("interval", "newest_marker", "offsets", "positions", "timestamps")

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.offsets: array[int] = array("q")
        self.positions: array[int] = array("q")
        self.timestamps: array[int] = array("q")
        self.newest_marker = NO_TIMESTAMP
        """The largest timestamp of the control batches, -1 without any."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all batches, -1 without any."""
        return max(self.newest_record, self.newest_marker)

    @property
    def newest_record(self) -> int:
        """The largest timestamp of the batches with records, -1 without any."""
        return self.timestamps[-1] if self.timestamps else NO_TIMESTAMP

    def add(self, base_offset: int, position: int, max_timestamp: int, is_control: int = 0) -> None:
        """Add the next batch. It gets an entry of its own if the last entry is at least `interval` bytes away."""
        timestamps = self.timestamps
        if is_control:
            self.newest_marker = max(self.newest_marker, max_timestamp)
            max_timestamp = NO_TIMESTAMP
        if not timestamps:
            self.offsets.append(base_offset)
            self.positions.append(position)
            timestamps.append(max_timestamp)
        elif position - self.positions[-1] >= self.interval:
            self.offsets.append(base_offset)
            self.positions.append(position)
            timestamps.append(max(max_timestamp, timestamps[-1]))
        elif max_timestamp > timestamps[-1]:
            timestamps[-1] = max_timestamp

    def entry_for_offset(self, offset: int) -> int:
        """Return the number of the last entry with a base offset of at most `offset`, or -1."""
        return bisect_right(self.offsets, offset) - 1

    def last_position_within(self, position: int) -> int:
        """Return the largest indexed position that is at most `position`."""
        return self.positions[bisect_right(self.positions, position) - 1]

    def entry_for_timestamp(self, timestamp: int) -> int | None:
        """Return the number of the first entry that covers a batch with this timestamp or a later one."""
        entry = bisect_left(self.timestamps, timestamp)
        return entry if entry < len(self.timestamps) else None

    def encode(
        self, *, size: int, base_offset: int, end_offset: int, first_timestamp: int
    ) -> bytes:
        """Return the content of the file for a segment of `size` bytes."""
        header = size, base_offset, end_offset, first_timestamp, self.newest_marker
        return SPARSE_INDEX.encode(header, (self.offsets, self.positions, self.timestamps))

    def cut_at(self, position: int) -> int:
        """Remove the entries from a byte position on, and the entry before: it counts timestamps after the position.

        Returns:
            The position of the entry before. The caller adds the batches from there on again.
        """
        count = max(bisect_left(self.positions, position) - 1, 0)
        start = self.positions[count] if count < len(self.positions) else 0
        self.cut(count)
        return start

    def cut(self, count: int) -> None:
        """Remove all but the first entries."""
        del self.offsets[count:], self.positions[count:], self.timestamps[count:]

    @classmethod
    def decode(
        cls, content: bytes | None, *, base_offset: int, interval: int
    ) -> IndexedPart | None:
        """Return the content of a file, or None unless the file is sound and describes this segment."""
        decoded = SPARSE_INDEX.decode(content)
        if decoded is None:
            return None
        (size, indexed_base, end_offset, first_timestamp, newest_marker), columns = decoded
        if indexed_base != base_offset:
            return None
        index = cls(interval)
        index.newest_marker = newest_marker
        index.offsets, index.positions, index.timestamps = columns
        return IndexedPart(index, size, end_offset, first_timestamp)


class IndexedPart(NamedTuple):
    """The index of the beginning of a segment, up to byte `size` and `end_offset`."""

    entries: SparseIndex
    size: int
    end_offset: int
    first_timestamp: int

    def below(self, offset: int) -> IndexedPart:
        """Return the part below an offset: all of it, or what lies before the last entry below the offset."""
        if self.end_offset <= offset:
            return self
        entries = self.entries
        last = max(entries.entry_for_offset(offset), 0)
        size, end_offset = entries.positions[last], entries.offsets[last]
        entries.cut(last)
        return IndexedPart(
            entries, size, end_offset, self.first_timestamp if last else NO_TIMESTAMP
        )
