"""Removing records from a batch. The result has the same offsets, with gaps.

The base offset and the last offset delta stay, so every reader advances past the gaps. Producer id, epoch, base
sequence, leader epoch, codec and flags stay too. Records count, largest timestamp and CRC are those of the remaining
records. A batch without remaining records can be kept as a header only. Such a header has no codec and no timestamp: no
search by time ends there.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from headrace.records.batch import (
    COMPRESSION_MASK,
    CRC_POSITION,
    CRC_START,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    TimestampType,
)
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression, compress
from headrace.records.raw import record_starts, timestamp_delta_at
from headrace.records.varint import encode_varint, wrap
from headrace.types import NO_TIMESTAMP, Buffer

_UINT32: Final = struct.Struct(">I")
_MAX_DELTA: Final = 2**31 - 1
PLACEHOLDER_KEY: Final = struct.pack(">hh", 0, 0x4844)
"""Version and type of the control record. Kafka's own types are small numbers, and clients skip unknown types."""


@dataclass(slots=True)
class Selection:
    """The remaining records of a batch: runs of bytes in the batch, and values for the new header."""

    runs: list[tuple[int, int]]
    kept: int = 0
    newest_delta: int = 0
    has_tombstone: bool = False


def with_records(
    header: BatchHeader,
    data: bytes,
    stays: Sequence[bool],
    *,
    max_timestamp: int | None = None,
    level: int | None = None,
) -> bytearray:
    """Return a batch with only the remaining records, of which there has to be one.

    Args:
        header: The header of the original batch.
        data: The decompressed bytes of its records.
        stays: Whether each record remains.
        max_timestamp: The largest timestamp for the new header. None computes it, which costs as much as all the rest.
        level: The level of compression on the scale of the codec; None for the codec's default.

    Raises:
        CorruptRecordError: The records cannot be decoded.
    """
    starts = record_starts(data, header.records_count)
    ends = [*starts[1:], len(data)]
    kept = list(itertools.compress(zip(starts, ends, strict=True), stays))
    selection = Selection([], kept=len(kept))
    if max_timestamp is None:
        selection.newest_delta = max(timestamp_delta_at(data, start) for start, _ in kept)
    else:
        selection.newest_delta = max_timestamp - header.base_timestamp
    body = b"".join([data[start:end] for start, end in kept])
    return rebuilt(header, body, selection, header.base_timestamp, header.attributes, level)


def rebuilt(  # noqa: PLR0917 - what a batch is made of
    header: BatchHeader,
    records: Buffer,
    selection: Selection,
    base_timestamp: int,
    attributes: int,
    level: int | None = None,
) -> bytearray:
    """Return a batch with other records.

    Args:
        header: The header of the original batch.
        records: The bytes of the new records, not compressed.
        selection: The values for the new header.
        base_timestamp: The base timestamp of the new batch.
        attributes: The attributes of the new batch.
        level: The level of compression on the scale of the codec; None for the codec's default.
    """
    codec = Compression(attributes & COMPRESSION_MASK)
    body = records if codec is Compression.NONE else compress(codec, records, level)
    newest = wrap(header.base_timestamp + selection.newest_delta)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        newest = header.max_timestamp
    return sealed(
        header._replace(
            batch_length=HEADER_SIZE - LOG_OVERHEAD + len(body),
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=newest,
            records_count=selection.kept,
        ),
        body,
    )


def without_records(header: BatchHeader) -> bytearray:
    """Return a batch as a header only."""
    return sealed(
        header._replace(
            batch_length=HEADER_SIZE - LOG_OVERHEAD,
            attributes=header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_FLAG),
            max_timestamp=NO_TIMESTAMP,
            records_count=0,
        ),
        b"",
    )


def placeholder(first_offset: int, end_offset: int, *, leader_epoch: int, now_ms: int) -> bytearray:
    """Return a batch that covers offsets without records, so that readers advance past them.

    It is a control record without a meaning, which clients skip like the markers of transactions. (Not a header only:
    librdkafka takes ten of those, over its lifetime, for batches that are too large.)
    """
    first_offset = max(first_offset, end_offset - 1 - _MAX_DELTA)
    last_offset_delta = end_offset - 1 - first_offset
    batch = BatchBuilder(control=True).build(
        base_offset=first_offset, partition_leader_epoch=leader_epoch
    )
    header = BatchHeader.parse(batch)._replace(
        last_offset_delta=last_offset_delta,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        records_count=1,
    )
    body = placeholder_record(last_offset_delta)
    return sealed(header._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD + len(body)), body)


def placeholder_record(offset_delta: int) -> bytes:
    """Return the record of a placeholder at the last offset: sarama continues after the record, not after the batch."""
    key = encode_varint(len(PLACEHOLDER_KEY)) + PLACEHOLDER_KEY
    body = b"\x00\x00" + encode_varint(offset_delta) + key + b"\x00\x00"
    return encode_varint(len(body)) + body


def sealed(header: BatchHeader, body: Buffer) -> bytearray:
    """Return a batch with this header and these bytes after it, and the CRC of both."""
    batch = bytearray(HEADER.pack(*header))
    batch += body
    _UINT32.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch
