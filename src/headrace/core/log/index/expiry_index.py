"""The expiry times of the records of a segment, in blocks of batches, and the `.ttlindex` file with these blocks.

Only topics with `headrace.ttl.enable` have such an index. It may be too cautious, but never wrong: a block about which
nothing is known may have expired records, or records that never expire. So a missing or damaged file only costs time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from headrace.core.log.index.sidecar import Sidecar
from headrace.records.expiry import NEVER, NO_RECORDS, UNKNOWN, Expiry

EXPIRY_INDEX: Final = Sidecar(".ttlindex", b"HRTL", 1, header_fields=2, columns=3)
"""Header: base offset, end in bytes of what the index describes.

Columns: positions, earliest and latest expiry times of blocks.
"""
BLOCK_BYTES: Final = 32 << 10
"""The least distance in bytes between the beginnings of two blocks."""


class ExpiryIndex:
    """Blocks in three parallel arrays. The attribute `end` is the end in bytes of what the index describes."""

    __slots__ = ("_earliest", "_latest", "_positions", "end")

    def __init__(self) -> None:
        self._positions: array[int] = array("q")
        self._earliest: array[int] = array("q")
        self._latest: array[int] = array("q")
        self.end = 0

    def note(self, position: int, end: int, expiry: Expiry) -> None:
        """Add a batch that lies at bytes `position` to `end`. A gap before the batch becomes an unknown block."""
        if position != self.end:
            self._add(self.end, UNKNOWN)
        if self._positions and position - self._positions[-1] < BLOCK_BYTES:
            self._earliest[-1] = min(self._earliest[-1], expiry.earliest)
            self._latest[-1] = max(self._latest[-1], expiry.latest)
        else:
            self._add(position, expiry)
        self.end = end

    def _add(self, position: int, expiry: Expiry) -> None:
        self._positions.append(position)
        self._earliest.append(expiry.earliest)
        self._latest.append(expiry.latest)

    def summary(self, size: int) -> Expiry:
        """Return when the first and the last record of a segment of `size` bytes expire."""
        if self.end < size:
            return UNKNOWN
        if not size:
            return NO_RECORDS
        return Expiry(min(self._earliest), max(self._latest))

    def first_expired(self, position: int, end: int, now_ms: int) -> int | None:
        """Return where the first block begins that may have expired records.

        Only the bytes from `position` to `end` are looked at. None if no block in them may have expired records.
        """
        first = max(bisect_right(self._positions, position) - 1, 0)
        for number in range(first, bisect_left(self._positions, end)):
            if self._earliest[number] <= now_ms:
                return max(position, self._positions[number])
        return max(position, self.end) if self.end < end else None

    def end_of_expired(self, position: int, now_ms: int) -> int:
        """Return the byte position up to which all records have expired, beginning at a position.

        The result is the position itself if its block has records that have not expired.
        """
        positions, latest = self._positions, self._latest
        number = bisect_right(positions, position) - 1
        if number < 0 or position >= self.end:
            return position
        while number < len(positions) and latest[number] <= now_ms:
            number += 1
            position = positions[number] if number < len(positions) else self.end
        return position

    def half_expired_ms(self, size: int) -> int:
        """Return when half of a segment of `size` bytes lies in blocks of which all records have expired."""
        expired = 0
        ends = [*self._positions[1:], self.end][: len(self._positions)]
        for latest, start, end in sorted(zip(self._latest, self._positions, ends, strict=True)):
            expired += end - start
            if 2 * expired >= size:
                return latest
        return NEVER

    def cut(self, size: int) -> None:
        """Remove what the index says about bytes from a size on."""
        count = bisect_left(self._positions, size)
        del self._positions[count:], self._earliest[count:], self._latest[count:]
        self.end = min(self.end, size)

    def encode(self, base_offset: int) -> bytes:
        """Return the content of the file of a segment."""
        columns = (self._positions, self._earliest, self._latest)
        return EXPIRY_INDEX.encode((base_offset, self.end), columns)

    @classmethod
    def decode(cls, content: bytes | None, *, base_offset: int, size: int) -> ExpiryIndex:
        """Return the index in the file of a segment of `size` bytes.

        The index is empty unless the file is sound and describes this segment.
        """
        index = cls()
        decoded = EXPIRY_INDEX.decode(content)
        if decoded is not None:
            (indexed_base, end), columns = decoded
            if indexed_base == base_offset and end <= size:
                index._positions, index._earliest, index._latest = columns
                index.end = end
        return index
