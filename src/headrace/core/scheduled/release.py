"""Batches of released records, as they are appended to the partition.

A record keeps its key, value and headers. Its timestamp is its delivery time. The producer id of the batch is the
schedule offset of its last record, and the batch has no sequence. No client can write such a batch, so the partition's
own log shows what has been released.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.core.scheduled.schedule_batch import Waiting, sealed
from headrace.records.batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from headrace.records.compression import FAST, Compression, compress
from headrace.records.varint import SMALL_VARINTS, encode_varint
from headrace.types import NO_PARTITION_LEADER_EPOCH

_SMALL_COUNT: Final = len(SMALL_VARINTS)


def build_release(
    released: Sequence[Waiting],
    last_offset: int,
    max_bytes: int,
    codec: Compression = Compression.NONE,
) -> bytes:
    """Return the batch that releases records in this order.

    Args:
        released: The records.
        last_offset: The schedule offset of the last record.
        max_bytes: The size above which a batch is compressed; a record that its producer had compressed may need that.
        codec: The codec of the batch, used at its fastest level.
    """
    base_timestamp = released[0].due_ms
    body = b"".join(
        [
            _moved(record, due_ms - base_timestamp, number)
            for number, (due_ms, record) in enumerate(released)
        ]
    )
    if codec is Compression.NONE and HEADER_SIZE + len(body) > max_bytes:
        codec = Compression.GZIP  # all clients can decompress it
    if codec is not Compression.NONE:
        body = compress(codec, body, FAST)
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_PARTITION_LEADER_EPOCH,
        magic=MAGIC,
        crc=0,
        attributes=codec,
        last_offset_delta=len(released) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=released[-1].due_ms,
        producer_id=last_offset,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=len(released),
    )
    return sealed(header, body)


def released_offset(header: BatchHeader) -> int | None:
    """Return the schedule offset of the last record in a release, None if the batch is no release."""
    if header.base_sequence >= 0 or header.attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG):
        return None
    return header.producer_id if header.producer_id >= 0 else None


def _moved(record: bytes, time_delta: int, offset_delta: int) -> bytes:
    """Return a record as it is encoded in another batch."""
    # The CRC of the record has been checked. A varint ends with the first byte below 0x80.
    start = 0
    while record[start] >= 0x80:
        start += 1
    position = start = start + 1
    for _ in range(2):
        position += 1
        while record[position] >= 0x80:
            position += 1
    position += 1
    body = b"".join(
        (
            record[start : start + 1],
            SMALL_VARINTS[time_delta] if time_delta < _SMALL_COUNT else encode_varint(time_delta),
            SMALL_VARINTS[offset_delta]
            if offset_delta < _SMALL_COUNT
            else encode_varint(offset_delta),
            record[position:],
        )
    )
    size = len(body)
    return (SMALL_VARINTS[size] if size < _SMALL_COUNT else encode_varint(size)) + body
