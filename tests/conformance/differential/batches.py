"""Batches to send: valid ones, and valid ones in which one thing is wrong."""

from __future__ import annotations

import struct
import time

from crc32c import crc32c

from headrace.records.batch import CRC_POSITION, CRC_START
from headrace.records.builder import build_batch
from headrace.records.compression import Compression

NOW_MS = int(time.time() * 1000)
OLD_MS = 1_600_000_000_000

LENGTH, LEADER_EPOCH, MAGIC, ATTRIBUTES = (8, ">i"), (12, ">i"), (16, ">b"), (21, ">h")
BASE_OFFSET, LAST_DELTA, COUNT = (0, ">q"), (23, ">i"), (57, ">i")
BASE_TIMESTAMP, MAX_TIMESTAMP = (27, ">q"), (35, ">q")
PRODUCER_ID, PRODUCER_EPOCH, SEQUENCE = (43, ">q"), (51, ">h"), (53, ">i")


def batch(
    *values: bytes,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    compression: Compression = Compression.NONE,
    timestamp_ms: int = OLD_MS,
    step_ms: int = 0,
) -> bytes:
    """Return a batch of records with these values; without values, of one record with the value b"v"."""
    records = [
        (b"k", value, (), timestamp_ms + step_ms * number)
        for number, value in enumerate(values or (b"v",))
    ]
    return build_batch(
        records,
        compression=compression,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
    )


def patched(raw: bytes, *changes: tuple[tuple[int, str], int], crc: bool = True) -> bytes:
    """Return a batch with other header fields, and with the right CRC unless `crc` is given."""
    changed = bytearray(raw)
    for (position, layout), value in changes:
        struct.pack_into(layout, changed, position, value)
    if crc:
        struct.pack_into(">I", changed, CRC_POSITION, crc32c(memoryview(changed)[CRC_START:]))
    return bytes(changed)


def with_payload(raw: bytes, payload: bytes) -> bytes:
    """Return a batch with other bytes in place of the records."""
    body = raw[:61] + payload
    return patched(body, (LENGTH, len(body) - 12))
