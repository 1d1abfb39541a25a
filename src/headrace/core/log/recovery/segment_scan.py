"""Reading a segment batch by batch, to find out how far it is sound.

Below the recovery point everything is known to be on the disk, so headers are enough: offsets have to follow one
another, or to rise where gaps are legal. The CRC is checked for the last batch below the recovery point, and for all
batches above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from headrace.core.log.index.leader_epochs import LeaderEpochCache
from headrace.core.log.offsets import MAX_OFFSET_SPAN
from headrace.ports import File
from headrace.records.batch import (
    BASE_OFFSET,
    BATCH_LENGTH,
    CRC,
    CRC_START,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_BYTE,
    MIN_BATCH_LENGTH,
    HeaderFields,
    unpack_header,
)

_CHUNK: Final = 1 << 20
_HEADERS_CHUNK: Final = 8 << 10
"""Bytes read at a time where only headers are needed. With large batches most of a longer read would be wasted."""


class SegmentScan:
    """Reads a segment file up to the first `fault`.

    The bytes before `position` and the offsets before `next_offset` are sound.
    """

    def __init__(
        self,
        file: File,
        position: int,
        offset: int,
        *,
        recovery_point: int,
        epochs: LeaderEpochCache,
    ) -> None:
        """Prepare to read from a byte position, where the batch with an offset begins.

        Args:
            file: The segment file.
            position: The byte position of the first batch.
            offset: The base offset of the first batch.
            recovery_point: The offset below which everything is known to be synced.
            epochs: The leader epochs before the first batch. The scan adds those that it finds.
        """
        self.position = position
        self.next_offset = offset
        self.fault = ""
        self.gap = False
        """Whether the only fault is that offsets are missing."""
        self._file = file
        self._size = file.size
        self._recovery_point = recovery_point
        self._epochs = epochs
        self._chunk = memoryview(b"")
        self._chunk_start = 0

    def batches(self, *, gaps_allowed: bool = False) -> Iterator[tuple[int, HeaderFields]]:
        """Yield (position, header) of each batch, up to the first fault or the end of the file.

        A base offset is outside the CRC. With `gaps_allowed` it has to rise, and must not pass the next batch's.
        """
        self.fault, self.gap = "", False
        while self.position < self._size:
            position = self.position
            header = self._header_at(position)
            if header is None:
                self.fault = "the file ends inside a batch header"
                return
            self.fault = self._fault(header)
            if not self.fault and header[BASE_OFFSET] != self.next_offset:
                self.fault = self._misplaced(header, gaps_allowed=gaps_allowed)
            if self.fault:
                return
            self.position = position + LOG_OVERHEAD + header[BATCH_LENGTH]
            self.next_offset = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1
            self._epochs.assign(header[LEADER_EPOCH], header[BASE_OFFSET])
            yield position, header

    def _header_at(self, position: int) -> HeaderFields | None:
        at = position - self._chunk_start
        if at + HEADER_SIZE > len(self._chunk):
            checked = self.next_offset >= self._recovery_point
            at = self._read(position, _CHUNK if checked else _HEADERS_CHUNK)
            if len(self._chunk) < HEADER_SIZE:
                return None
        return unpack_header(self._chunk, at)

    def _read(self, position: int, size: int) -> int:
        self._chunk = memoryview(self._file.read(position, size))
        self._chunk_start = position
        return 0

    def _fault(self, header: HeaderFields) -> str:
        position = self.position
        if fault := header_fault(header, self._size - position):
            return fault
        # Also for the last batch below the recovery point: its length decides where the first batch above begins.
        checked = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1 >= self._recovery_point
        if checked and self._crc(position, LOG_OVERHEAD + header[BATCH_LENGTH]) != header[CRC]:
            return "the CRC does not match"
        if header[LEADER_EPOCH] < self._epochs.latest:
            return f"leader epoch {header[LEADER_EPOCH]} after {self._epochs.latest}"
        return ""

    def _misplaced(self, header: HeaderFields, *, gaps_allowed: bool) -> str:
        """Return what is wrong with a base offset that is not the next offset, "" if it is a gap that is allowed."""
        base_offset, last_offset = (
            header[BASE_OFFSET],
            header[BASE_OFFSET] + header[LAST_OFFSET_DELTA],
        )
        missing = (
            base_offset > self.next_offset and last_offset - self.next_offset <= MAX_OFFSET_SPAN
        )
        if missing and gaps_allowed:
            following = self._base_offset_after(header)
            if following is None or following > last_offset:
                return ""
            return f"base offset {base_offset}, but the next batch begins at {following}"
        self.gap = missing
        return f"base offset {base_offset} where {self.next_offset} should follow"

    def _base_offset_after(self, header: HeaderFields) -> int | None:
        """Return the base offset of the batch after this one, None if no sound batch follows."""
        position = self.position + LOG_OVERHEAD + header[BATCH_LENGTH]
        content = self._file.read(position, HEADER_SIZE)
        if len(content) < HEADER_SIZE:
            return None
        following = unpack_header(content)
        if header_fault(following, self._size - position):
            return None
        end = position + LOG_OVERHEAD + following[BATCH_LENGTH]
        sound = _crc_of(self._file, position + CRC_START, end) == following[CRC]
        return following[BASE_OFFSET] if sound else None

    def _crc(self, position: int, batch_size: int) -> int:
        if batch_size > _CHUNK:
            return _crc_of(self._file, position + CRC_START, position + batch_size)
        at = position - self._chunk_start
        if at + batch_size > len(self._chunk):
            at = self._read(position, _CHUNK)
        return crc32c(self._chunk[at + CRC_START : at + batch_size])


def _crc_of(file: File, position: int, end: int) -> int:
    # In pieces: the batch length may be wrong until the CRC has been checked.
    crc = 0
    while position < end:
        piece = file.read(position, min(_CHUNK, end - position))
        crc = crc32c(piece, crc)
        position += len(piece)
    return crc


def header_fault(header: HeaderFields, remaining: int) -> str:
    """Return what is wrong with the header of a batch, "" if nothing is.

    Args:
        header: The header, whose CRC is not checked yet.
        remaining: The number of bytes from the beginning of the batch on.
    """
    length, magic = header[BATCH_LENGTH], header[MAGIC_BYTE]
    if length < MIN_BATCH_LENGTH:
        return f"batch length {length}"
    if magic != MAGIC:
        return f"magic {magic}"
    if length + LOG_OVERHEAD > remaining:
        return "the bytes end inside a batch"
    if header[LAST_OFFSET_DELTA] < 0:
        return f"last offset delta {header[LAST_OFFSET_DELTA]}"
    return ""
