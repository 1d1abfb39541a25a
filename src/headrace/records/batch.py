"""The header of a record batch (message format 2), without its records.

Layout, big-endian (Kafka documentation, "Record Batch"): base offset int64, batch length int32 (bytes after this
field), partition leader epoch int32, magic int8, CRC-32C uint32 (of everything from the attributes on), attributes
int16, last offset delta int32, base timestamp int64, max timestamp int64, producer id int64, producer epoch int16,
base sequence int32, records count int32; then the records.

Base offset and leader epoch lie before the CRC's range, so a broker sets them without touching the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.errors import CorruptRecordError
from headrace.types import Buffer

MAGIC: Final = 2
HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and batch length, which the batch length does not count."""
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
CRC_START: Final = 21
"""The position of the attributes, where the range of the CRC begins."""
MAX_TIMESTAMP_POSITION: Final = 35
MIN_RECORD_SIZE: Final = 7
"""The least size of a record in bytes: seven fields of one byte each.

Length, attributes, timestamp delta, offset delta, key length, value length, number of headers.
"""
MAX_RECORDS: Final = 1 << 17
"""The largest number of records in a batch that a broker appends. A few compressed kilobytes could hold millions.

1 MiB holds at most 117,420 records with consecutive offsets, of 7 to 9 bytes each. So the bound refuses no uncompressed
batch of that size, and only compressed batches with more records than an uncompressed one could have.
"""

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
unpack_header: Final = HEADER.unpack_from
"""Return the thirteen fields of a header as a plain tuple, where a `BatchHeader` would cost too much."""

HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The header of a batch as a plain tuple, in the order of `BatchHeader`. The names below are indexes into it."""
BASE_OFFSET: Final = 0
BATCH_LENGTH: Final = 1
LEADER_EPOCH: Final = 2
MAGIC_BYTE: Final = 3
CRC: Final = 4
ATTRIBUTES: Final = 5
LAST_OFFSET_DELTA: Final = 6
BASE_TIMESTAMP: Final = 7
MAX_TIMESTAMP: Final = 8
PRODUCER_ID: Final = 9
PRODUCER_EPOCH: Final = 10
BASE_SEQUENCE: Final = 11
RECORDS_COUNT: Final = 12


class TimestampType(IntEnum):
    """The meaning of a batch's timestamps. The numbers are those of bit 3 of the attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The header of one batch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @classmethod
    def parse(cls, buffer: Buffer, position: int = 0) -> BatchHeader:
        """Read the header at `position`. Only the presence of its bytes is checked.

        Raises:
            CorruptRecordError: The buffer ends inside the header.
        """
        try:
            return cls._make(unpack_header(buffer, position))
        except struct.error:
            raise CorruptRecordError(f"no whole batch header at byte {position}") from None

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def compression(self) -> int:
        """The number of the codec, see `headrace.records.compression.Compression`."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record (a transaction marker) instead of data."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether timestamps are the producer's or the broker's."""
        return TimestampType((self.attributes & LOG_APPEND_TIME_FLAG) >> 3)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 without a producer id. Sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def batch_crc(buffer: Buffer, position: int, size: int) -> int:
    """Return the CRC-32C that a batch of `size` bytes at `position` should have in its header."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + size])


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at `position` after checking length, magic and CRC.

    Raises:
        CorruptRecordError: The batch is not whole, not of format 2, or damaged.
    """
    header = BatchHeader.parse(buffer, position)
    if header.batch_length < MIN_BATCH_LENGTH or position + header.size > len(buffer):
        raise CorruptRecordError(
            f"batch length {header.batch_length} at byte {position} does not fit"
        )
    if header.magic != MAGIC:
        raise CorruptRecordError(f"magic {header.magic} at byte {position}; only 2 is supported")
    if batch_crc(buffer, position, header.size) != header.crc:
        raise CorruptRecordError(f"CRC mismatch in the batch at byte {position}")
    return header


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every whole batch. An incomplete batch at the end is left out. CRCs are not checked.

    Raises:
        CorruptRecordError: A batch length is smaller than a header.
    """
    position, end = 0, len(buffer)
    while position + HEADER_SIZE <= end:
        header = BatchHeader.parse(buffer, position)
        if header.batch_length < MIN_BATCH_LENGTH:
            raise CorruptRecordError(f"batch length {header.batch_length} at byte {position}")
        if position + header.size > end:
            return
        yield position, header
        position += header.size
