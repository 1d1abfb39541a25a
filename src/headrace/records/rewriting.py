"""What is left of a batch when some of its records go: a batch with the same offsets, and gaps in between.

Base offset and last offset delta stay, so every reader comes past the gaps; so do producer id, epoch and base sequence,
leader epoch, codec and flags. Records count, largest timestamp and CRC are those of what is left. A batch that has lost
all its records can stay as a mere header; such a header has no codec and no timestamp: no search by time ends there.
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
"""Version and type of the control record; Kafka's own types are small numbers, and clients pass over others."""


@dataclass(slots=True)
class Selection:
    """What stays of a batch: runs of bytes that follow each other in the batch, and what the header has to say."""

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
    """Return a batch with only those of its records that stay, at least one.

    Args:
        header: Its header.
        data: The bytes of its records, decompressed.
        stays: Of each record, whether it does.
        max_timestamp: What the new header says; None finds it out, which costs as much as all else.
        level: The level of compression, on the scale of the codec; None for its usual one.

    Raises:
        CorruptRecordError: The records do not decode.
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
    """Return a batch with other records, given decompressed.

    Args:
        header: What the batch had.
        records: The bytes of the new records.
        selection: What there is to know of them.
        base_timestamp: From where their timestamps count.
        attributes: The batch's attributes from now on.
        level: The level of compression, on the scale of the codec; None for its usual one.
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
    """Return a batch as a mere header."""
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
    """Return a batch that stands for offsets without records, for readers to come past them.

    It is a control record that means nothing, which clients pass over as over the markers of transactions. (Not a mere
    header: librdkafka takes ten of those, ever, for batches that are too large for it.)
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
    """Return the record of a placeholder, at the last offset: sarama goes on behind the record, not the batch."""
    key = encode_varint(len(PLACEHOLDER_KEY)) + PLACEHOLDER_KEY
    body = b"\x00\x00" + encode_varint(offset_delta) + key + b"\x00\x00"
    return encode_varint(len(body)) + body


def sealed(header: BatchHeader, body: Buffer) -> bytearray:
    """Return a batch of this header and these bytes behind it, with the CRC of both."""
    batch = bytearray(HEADER.pack(*header))
    batch += body
    _UINT32.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch
