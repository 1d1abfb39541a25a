"""The content of a schedule: batches of waiting records, and marks that say what has been released.

Both have the header of a record batch. So a schedule is a partition log like any other, with its recovery, its syncs
and its state of producers. But no records follow the header:

    waiting    for each record delivery time int64, size int32, CRC-32C uint32; then the records, as in their batch
    mark       (control flag) target offset int64, release point; number of earlier release points int16, each with an
               end offset int64 before it. A release point is delivery time int64 and schedule offset int64

Offsets count records: each record of a batch has an offset of its own. A waiting batch has the id, epoch and base
sequence of the producer's batch. Its largest timestamp is the time at which it was scheduled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.errors import CorruptRecordError
from headrace.records.batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from headrace.records.rewriting import sealed as with_crc
from headrace.types import NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_ID, Buffer

ENTRY: Final = struct.Struct(">qqIII")
"""Delivery time, schedule offset, byte position in the segment, size, CRC. As bytes they sort in the order of release.
"""
_ROW: Final = struct.Struct(">qII")
_MARK: Final = struct.Struct(">qqqH")
_EARLIER: Final = struct.Struct(">qqq")


class Waiting(NamedTuple):
    """A record that waits for its delivery time."""

    due_ms: int
    record: bytes


class ReleasePoint(NamedTuple):
    """The last released record, in the order of delivery times, and of schedule offsets for equal times."""

    due_ms: int
    offset: int


NOTHING: Final = ReleasePoint(-1, -1)


def sealed(header: BatchHeader, body: Buffer) -> bytes:
    """Return a batch with a header whose length and CRC fit the body."""
    header = header._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD + len(body))
    return bytes(with_crc(header, body))


class Mark(NamedTuple):
    """The state of the releases.

    Attributes:
        target_offset: The offset of the target below which the mark covers all releases.
        released: The release point.
        earlier: (end offset, release point) pairs. The release point applies to the records scheduled below the end
            offset: it was reached before the clock was set back.
    """

    target_offset: int
    released: ReleasePoint = NOTHING
    earlier: tuple[tuple[int, ReleasePoint], ...] = ()

    def covers(self, due_ms: int, offset: int) -> bool:
        """Return whether a record has been released."""
        key = (due_ms, offset)
        return key <= self.released or any(
            offset < end and key <= point for end, point in self.earlier
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
    """Return the entries (`ENTRY`) of a waiting batch at a byte position of its segment.

    Raises:
        CorruptRecordError: The batch is not a waiting batch.
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
    body = _MARK.pack(mark.target_offset, *mark.released, len(mark.earlier)) + b"".join(
        _EARLIER.pack(end, *point) for end, point in mark.earlier
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
    """Return the mark in a batch.

    Raises:
        CorruptRecordError: The batch is not a mark.
    """
    body = bytes(memoryview(batch)[HEADER_SIZE:])
    try:
        target_offset, due_ms, offset, count = _MARK.unpack_from(body)
        earlier = tuple(
            (end, ReleasePoint(*point))
            for end, *point in (
                _EARLIER.unpack_from(body, _MARK.size + number * _EARLIER.size)
                for number in range(count)
            )
        )
    except struct.error as error:
        raise CorruptRecordError(f"a mark of a schedule: {error}") from error
    return Mark(target_offset, ReleasePoint(due_ms, offset), earlier)
