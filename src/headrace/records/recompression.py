"""Compressing a produced batch with another codec. Its records stay the same, byte for byte.

The header keeps the producer id, epoch, sequence, base timestamp and flags of the batch. So a retry is recognised, and
timestamps keep their meaning. The largest timestamp is computed from the records, whatever the producer has sent.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.errors import ApiError, CorruptRecordError, ErrorCode, InvalidRecordError
from headrace.records.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from headrace.records.compression import (
    FAST,
    MAX_DECOMPRESSED_SIZE,
    Compression,
    output_bound,
)
from headrace.records.reader import BatchSlices, Record
from headrace.records.rewriting import sealed
from headrace.types import MAX_INT64, MIN_INT64, Buffer

RECOMPRESSED_MAX: Final = 16 << 20
"""The largest size in bytes of the decompressed records of a recompressed batch, unless larger batches are allowed."""

_KEPT_FLAGS: Final = LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG
_FAST_LZ4: Final = 9
"""Kafka's level for the fast compressor, which is the default."""
_LEAST_LZ4, _MOST_LZ4 = 3, 12
"""The least and the largest level at which lz4 uses a compressor other than the fast one."""

_GZIP_COST: Final = 8
_ZSTD_COST: Final = 1.5
_ZSTD_GROWTH: Final = 1.3
"""The factor by which each level of zstd is slower than the level below."""
_SLOW_LZ4_COST: Final = 8


@dataclass(frozen=True, slots=True)
class Target:
    """The codec and the level for batches.

    Attributes:
        codec: The codec.
        level: The level on the scale of `headrace.records.compression`; None for the codec's default.
    """

    codec: Compression
    level: int | None = None

    @classmethod
    def of(cls, name: str, *, gzip_level: int, lz4_level: int, zstd_level: int) -> Target | None:
        """Return the target for a topic's `compression.type` and levels; None for 'producer'.

        The levels are on Kafka's scale.
        """
        if name == "producer":
            return None
        if name == "gzip":
            return cls(Compression.GZIP, None if gzip_level < 0 else gzip_level)
        if name == "lz4":
            level = FAST
            if lz4_level != _FAST_LZ4:
                level = min(max(lz4_level, _LEAST_LZ4), _MOST_LZ4)
            return cls(Compression.LZ4, level)
        if name == "zstd":
            return cls(Compression.ZSTD, zstd_level)
        return cls(Compression.NONE if name == "uncompressed" else Compression.SNAPPY)

    def cost(self, size: int) -> int:
        """Return the cost of compressing `size` bytes, in bytes that are decompressed in the same time."""
        if self.codec is Compression.GZIP:
            return _GZIP_COST * size
        if self.codec is Compression.ZSTD:
            level = 3 if self.level is None else max(1, self.level)
            return int(_ZSTD_COST * _ZSTD_GROWTH ** (level - 3) * size)
        if self.codec is Compression.LZ4 and self.level != FAST:
            return _SLOW_LZ4_COST * size
        return size


class Times(NamedTuple):
    """The smallest and the largest timestamp of some records."""

    oldest: int
    newest: int


def most_decompressed(max_message_bytes: int) -> int:
    """Return the largest size in bytes to which the records of a recompressed batch may decompress."""
    return min(MAX_DECOMPRESSED_SIZE, max(RECOMPRESSED_MAX, max_message_bytes))


def check_records(header: BatchHeader, data: Buffer) -> Generator[int, None, Times]:
    """Check each record of a batch. Yields the number of records in each slice.

    Args:
        header: The batch's header.
        data: The decompressed bytes of its records.

    Returns:
        The timestamps of the records.

    Raises:
        InvalidRecordError: The records cannot be decoded, or are not numbered from 0 on without gaps.
    """
    first = expected = header.base_offset
    oldest, newest = MAX_INT64, MIN_INT64
    try:
        slices = BatchSlices(Record, header, b"", data=data)
        while records := slices.next_slice():
            for number, record in enumerate(records, expected):
                if record[0] != number:
                    raise _misnumbered(number - first, record[0] - first)
            expected += len(records)
            timestamps = [record[1] for record in records]
            oldest = min(oldest, *timestamps)
            newest = max(newest, *timestamps)
            yield len(records)
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from error
    return Times(oldest, newest)


def _misnumbered(number: int, offset_delta: int) -> InvalidRecordError:
    return InvalidRecordError(
        f"record {number} of the batch has offset delta {offset_delta}; it has to be {number}"
    )


def with_codec(
    header: BatchHeader, data: Buffer, body: Buffer, codec: Compression, max_timestamp: int
) -> bytearray:
    """Return a batch with its records in another codec.

    Args:
        header: The header of the original batch.
        data: The decompressed bytes of its records.
        body: The same bytes, compressed.
        codec: The codec of `body`.
        max_timestamp: The largest timestamp of the records.

    Raises:
        ApiError: MESSAGE_TOO_LARGE; consumers would refuse the batch as a decompression bomb.
    """
    if codec is not Compression.NONE and len(data) > output_bound(len(body)):
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{len(data)} bytes of records become {len(body)} with {codec.name.lower()}, which consumers would refuse "
            "to decompress. Send smaller batches.",
        )
    attributes = header.attributes & _KEPT_FLAGS | codec
    return sealed(
        header._replace(
            batch_length=HEADER_SIZE - LOG_OVERHEAD + len(body),
            attributes=attributes,
            max_timestamp=max_timestamp,
        ),
        body,
    )
