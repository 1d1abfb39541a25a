"""What lies in a schedule: batches of waiting records, and marks that say what has been released.

Both have the header of a record batch, so a schedule is a partition log like any other, with its recovery, its syncs
and its memory of producers. What follows the header is not records:

    waiting    for each record due time int64, size int32, CRC-32C uint32; then the records, as they lay in their batch
    mark       (control flag) target offset int64, cursor; number of earlier cursors int16, each with an end offset
               int64 before it. A cursor is due time int64 and schedule offset int64

Offsets count records; the number in a batch gives each record its offset. A waiting batch has id, epoch and base
sequence of the producer's batch; its largest timestamp is the time at which it was scheduled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.errors import CorruptRecordError
from headrace.records.batch import (
    CONTROL_FLAG,
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from headrace.types import NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_ID, Buffer

ENTRY: Final = struct.Struct(">qqIII")
"""Due time, schedule offset, position in the segment, size, CRC: packed, they sort as bytes in the order of release."""
_ROW: Final = struct.Struct(">qII")
_UINT32: Final = struct.Struct(">I")
_CURSOR: Final = struct.Struct(">qq")
_MARK: Final = struct.Struct(">qqqH")
_EARLIER: Final = struct.Struct(">qqq")


class Waiting(NamedTuple):
    """A record that waits."""

    due_ms: int
    record: bytes


class Cursor(NamedTuple):
    """The last record that was released: in the order of due times, and of schedule offsets where these are equal."""

    due_ms: int
    offset: int


NOTHING: Final = Cursor(-1, -1)


def sealed(header: BatchHeader, body: Buffer) -> bytes:
    """Return a batch with a header whose length and CRC fit the body."""
    header = header._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD + len(body))
    batch = bytearray(HEADER.pack(*header))
    batch += body
    _UINT32.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


class Mark(NamedTuple):
    """What has been released.

    Attributes:
        target_offset: Offset of the target log below which all releases are covered by this mark.
        cursor: Where the release is.
        earlier: For those scheduled below an offset: where it was before the clock had been set back.
    """

    target_offset: int
    cursor: Cursor = NOTHING
    earlier: tuple[tuple[int, Cursor], ...] = ()

    def covers(self, due_ms: int, offset: int) -> bool:
        """Whether a record has been released."""
        key = (due_ms, offset)
        return key <= self.cursor or any(
            offset < end and key <= cursor for end, cursor in self.earlier
        )


def encode_waiting(header: BatchHeader, waiting: Sequence[Waiting], now_ms: int) -> bytes:
    """Return the schedule's part of a produced batch."""
    rows = [_ROW.pack(due, len(record), crc32c(record)) for due, record in waiting]
    body = b"".join([*rows, *(record for _, record in waiting)])
    return sealed(
        header._replace(
            base_offset=0,
            attributes=0,
            last_offset_delta=len(waiting) - 1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            records_count=len(waiting),
        ),
        body,
    )


def entries_of(batch: Buffer, base_offset: int, position: int) -> list[bytes]:
    """Return the entries (`ENTRY`) of a waiting batch that lies at a position of its segment.

    Raises:
        CorruptRecordError: It is none.
    """
    header = BatchHeader.parse(batch)
    rows_end = HEADER_SIZE + header.records_count * _ROW.size
    if rows_end > header.size:
        raise CorruptRecordError(f"{header.records_count} waiting records in {header.size} bytes")
    rows = memoryview(batch)[HEADER_SIZE:rows_end]
    position += rows_end
    pack = ENTRY.pack
    entries: list[bytes] = []
    for offset, (due_ms, size, crc) in enumerate(_ROW.iter_unpack(rows), base_offset):
        entries.append(pack(due_ms, offset, position, size, crc))
        position += size
    return entries


def encode_mark(mark: Mark, now_ms: int) -> bytes:
    """Return a mark as a batch."""
    body = _MARK.pack(mark.target_offset, *mark.cursor, len(mark.earlier)) + b"".join(
        _EARLIER.pack(end, *cursor) for end, cursor in mark.earlier
    )
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_PARTITION_LEADER_EPOCH,
        magic=MAGIC,
        crc=0,
        attributes=CONTROL_FLAG,
        last_offset_delta=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=1,
    )
    return sealed(header, body)


def decode_mark(batch: Buffer) -> Mark:
    """Read a mark.

    Raises:
        CorruptRecordError: It is none.
    """
    body = bytes(memoryview(batch)[HEADER_SIZE:])
    try:
        target_offset, due_ms, offset, count = _MARK.unpack_from(body)
        earlier = tuple(
            (end, Cursor(*cursor))
            for end, *cursor in (
                _EARLIER.unpack_from(body, _MARK.size + number * _EARLIER.size)
                for number in range(count)
            )
        )
    except struct.error as error:
        raise CorruptRecordError(f"a mark of a schedule: {error}") from error
    return Mark(target_offset, Cursor(due_ms, offset), earlier)
