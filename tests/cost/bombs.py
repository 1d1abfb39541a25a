"""Small batches that inflate, or claim too much: one record of megabytes, millions of records, headers without end."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

import cramjam
from crc32c import crc32c

from headrace.records.compression import Compression, compress

PAD_SHARE: Final = 900
"""The number of compressible bytes for each incompressible one: readers refuse batches that inflate to more than 1,000
times."""


def bombs(records: int, inflated: int, topic: str) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    """Yield bombs by name, each as a function that makes the bomb for a time in milliseconds.

    Args:
        records: The number of records that batches of many records claim and have.
        inflated: The size to which batches of one record inflate, in bytes.
        topic: The topic of the batches. Its name determines which record headers matter.
    """
    headers = b"\0"
    if topic.endswith("delay"):
        headers = _headers((b"headrace.delay-ms", b"3600000"))
    elif topic.endswith("ttl"):
        headers = _headers((b"headrace.ttl-ms", b"3600000"))
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        yield f"{codec.name} of one record", _bomb(codec, _one(codec, inflated, headers), 1)
        for count in (100_000, records):
            yield (
                f"{codec.name} of {count} records",
                _bomb(codec, _many(codec, count, headers), count),
            )
    members = gzip.compress(b"", mtime=0) * 50_000
    yield "gzip of many members", _bomb(Compression.GZIP, members, 1)
    claim = bytes(cramjam.zstd.compress(b"x"))
    yield "a claim of 2,000,000,000 records", _bomb(Compression.ZSTD, claim, 2_000_000_000)
    plain = b"".join(record(b"", b"", number) for number in range(100_000))
    yield "100,000 plain records", _bomb(Compression.NONE, plain, 100_000)


def _bomb(codec: Compression, body: bytes, count: int) -> Callable[[int], bytes]:
    return lambda timestamp_ms: batch(codec, body, count, timestamp_ms)


@cache
def _one(codec: Compression, inflated: int, headers: bytes) -> bytes:
    pad = os.urandom(inflated // PAD_SHARE)
    content = record(b"k", pad + bytes(inflated - len(pad)), 0, headers)
    return bytes(compress(codec, content))


@cache
def _many(codec: Compression, count: int, headers: bytes) -> bytes:
    small = record(b"", b"", 5, headers)
    pad = record(b"", os.urandom(len(small) * count // PAD_SHARE), 0, headers)
    return bytes(compress(codec, pad + small * (count - 1)))


def batch(codec: int, body: bytes, count: int, timestamp_ms: int) -> bytes:
    """Return a batch with any body, which claims a number of records."""
    identity = (timestamp_ms, timestamp_ms, -1, -1, -1)
    after = struct.pack(">hiqqqhii", codec, count - 1, *identity, count) + body
    whole = struct.pack(">ibI", 0, 2, crc32c(after)) + after
    return struct.pack(">qi", 0, len(whole)) + whole


def record(key: bytes, value: bytes, delta: int, headers: bytes = b"\0") -> bytes:
    """Return one record with its length in front."""
    content = b"".join(
        [b"\0\0", _varint(delta), _varint(len(key)), key, _varint(len(value)), value, headers]
    )
    return _varint(len(content)) + content


def _headers(*pairs: tuple[bytes, bytes]) -> bytes:
    content = b"".join(_varint(len(k)) + k + _varint(len(v)) + v for k, v in pairs)
    return _varint(len(pairs)) + content


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)
