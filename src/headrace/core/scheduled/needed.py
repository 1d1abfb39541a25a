"""The parts of a schedule that are still needed. Everything below the first such part can be deleted."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from typing import Final

from headrace.core.log import MAX_OFFSET

_CHUNK_BITS: Final = 12
"""A chunk is 2^12 = 4096 offsets of the schedule."""
_OFFSET: Final = struct.Struct(">8xq")
"""The schedule offset of an entry, see `schedule_batch.ENTRY`."""

Chunks = Counter[int]
"""The number of records in each chunk, by the number of the chunk."""


def chunks_of(entries: Iterable[bytes]) -> Chunks:
    """Return the chunks in which the records of entries lie."""
    offsets = map(_OFFSET.unpack_from, entries)
    return Counter([offset >> _CHUNK_BITS for (offset,) in offsets])


def chunk_of(offset: int) -> Chunks:
    """Return the chunk of one schedule offset."""
    return Counter([offset >> _CHUNK_BITS])


class NeededChunks:
    """Counts the records in each chunk that wait, or belong to a release that no committed mark covers."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Chunks = Counter()

    def add(self, chunks: Chunks) -> None:
        """Count records in these chunks."""
        self._counts.update(chunks)

    def remove(self, chunks: Chunks) -> None:
        """Stop counting records in these chunks."""
        counts = self._counts
        for chunk, count in chunks.items():
            counts[chunk] -= count
            if not counts[chunk]:
                del counts[chunk]

    @property
    def first_offset(self) -> int:
        """The first offset of the first chunk that is needed; `MAX_OFFSET` if none is."""
        return min(self._counts) << _CHUNK_BITS if self._counts else MAX_OFFSET
