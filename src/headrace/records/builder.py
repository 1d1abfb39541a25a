"""Encoding records as record batches."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from crc32c import crc32c

from headrace.records.accel import Writer, kernels
from headrace.records.batch import (
    CONTROL_FLAG,
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
)
from headrace.records.compression import Compression, compress
from headrace.records.decoding import MAX_HEADERS
from headrace.records.varint import SMALL_VARINTS, encode_varint
from headrace.types import NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_ID, Buffer

Headers = Sequence[tuple[str, bytes | None]]
RecordFields = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp in milliseconds."""

_UINT32: Final = struct.Struct(">I")
_NULL: Final = encode_varint(-1)
_SMALL: Final = SMALL_VARINTS
_SMALL_COUNT: Final = len(SMALL_VARINTS)
_FastWriter = None if kernels is None else kernels.RecordWriter


class RecordWriter:
    """Collects the encoded records of one batch. The accelerator has the same class in C.

    `max_bytes` bounds the size of the batch with its header. The first record is always accepted.
    """

    __slots__ = ("_max_bytes", "_parts", "base_timestamp", "count", "max_timestamp", "size")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        """The parts of the records, joined once at the end, so that no byte is copied twice."""
        self.size = HEADER_SIZE
        self.count = 0
        self.base_timestamp = 0
        self.max_timestamp = -1

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp_ms: int = 0,
    ) -> bool:
        """Add a record. Returns false, without a change, when it does not fit.

        Raises:
            ValueError: The timestamp, or its distance from the first one, has more than 64 bits.
        """
        # One function without calls, because it runs for each record. Nearly all lengths are in the table.
        count = self.count
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
        tail = encode_headers(headers) if headers else b"\x00"
        delta = timestamp_ms - (self.base_timestamp if count else timestamp_ms)
        delta_code = (
            _SMALL[delta] if count and 0 <= delta < _SMALL_COUNT else _delta(delta, timestamp_ms)
        )
        offset_code = _SMALL[count] if count < _SMALL_COUNT else encode_varint(count)
        key_code = _SMALL[key_size] if 0 <= key_size < _SMALL_COUNT else encode_varint(key_size)
        value_code = (
            _SMALL[value_size] if 0 <= value_size < _SMALL_COUNT else encode_varint(value_size)
        )
        head = b"\x00" + delta_code + offset_code + key_code
        size = len(head) + len(value_code) + len(tail)
        if key:
            size += key_size
        if value:
            size += value_size
        size_code = _SMALL[size] if size < _SMALL_COUNT else encode_varint(size)
        if count and self.size + len(size_code) + size > self._max_bytes:
            return False
        self._parts += (size_code, head, key or b"", value_code, value or b"", tail)
        self.size += len(size_code) + size
        if not count:
            self.base_timestamp = timestamp_ms
        self.count = count + 1
        if timestamp_ms > self.max_timestamp:  # noqa: PLR1730 - a call of max() takes as long as all lengths together
            self.max_timestamp = timestamp_ms
        return True

    def extend(self, values: list[bytes | None], start: int, timestamp_ms: int) -> int:
        """Add `values[start:]` without keys and headers, as many as fit, and return how many that were."""
        before = self.count
        for value in values[start:]:
            if not self.append(None, value, (), timestamp_ms):
                break
        return self.count - before

    def join(self) -> bytes:
        """Return the bytes of the records."""
        return b"".join(self._parts)


class BatchBuilder:
    """Collects records and encodes them as one batch.

    `max_bytes` bounds the uncompressed batch. The first record is always accepted, so that only the receiver's limit
    refuses it. The base offset of a built batch is 0, as producers send it.
    """

    __slots__ = ("_compression", "_flags", "_level", "_writer", "append", "extend")

    def __init__(
        self,
        compression: Compression = Compression.NONE,
        *,
        level: int | None = None,
        max_bytes: int = 1 << 20,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        self._compression = compression
        self._level = level
        self._flags = (TRANSACTIONAL_FLAG if transactional else 0) | (
            CONTROL_FLAG if control else 0
        )
        self._writer: Writer = (
            RecordWriter(max_bytes)
            if _FastWriter is None
            else _FastWriter(max_bytes, encode_headers)
        )
        self.append = self._writer.append
        """Adds a record, and returns false when it does not fit. The writer's own method, because it runs for each
        record."""
        self.extend = self._writer.extend
        """Adds a list of values, and returns how many fitted."""

    def __len__(self) -> int:
        return self._writer.count

    @property
    def size(self) -> int:
        """The size of the batch so far in bytes, before compression."""
        return self._writer.size

    def build(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        *,
        base_offset: int = 0,
        partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    ) -> bytes:
        """Encode the batch. The builder keeps its records."""
        writer = self._writer
        records: Buffer = writer.join()
        if self._compression != Compression.NONE:
            records = compress(self._compression, records, self._level)
        header = bytearray(
            HEADER.pack(
                base_offset,
                HEADER_SIZE - LOG_OVERHEAD + len(records),
                partition_leader_epoch,
                MAGIC,
                0,
                self._compression | self._flags,
                max(writer.count - 1, 0),
                writer.base_timestamp,
                writer.max_timestamp,
                producer_id,
                producer_epoch,
                base_sequence,
                writer.count,
            )
        )
        _UINT32.pack_into(header, CRC_POSITION, crc32c(records, crc32c(header[CRC_START:])))
        return b"".join((header, records))


def build_batch(
    records: Iterable[RecordFields],
    *,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytes:
    """Encode records as one batch, however large it becomes.

    Args:
        records: Key, value, headers and timestamp in milliseconds of each record.
        compression: The codec.
        producer_id: The id of an idempotent producer, or -1.
        producer_epoch: The epoch of the producer, or -1.
        base_sequence: The sequence of the first record, or -1.
        base_offset: 0, as producers send it.
        partition_leader_epoch: -1, as producers send it.
    """
    builder = BatchBuilder(compression, max_bytes=1 << 62)
    for key, value, headers, timestamp_ms in records:
        builder.append(key, value, headers, timestamp_ms)
    return builder.build(
        producer_id,
        producer_epoch,
        base_sequence,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
    )


def encode_headers(headers: Headers) -> bytes:
    """Encode the headers of a record, with their number first.

    Raises:
        ValueError: There are more headers than readers accept.
    """
    if len(headers) > MAX_HEADERS:
        raise ValueError(f"a record with {len(headers)} headers; {MAX_HEADERS} are the most")
    parts = [encode_varint(len(headers))]
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        parts += (encode_varint(len(encoded)), encoded)
        parts += (_NULL,) if content is None else (encode_varint(len(content)), content)
    return b"".join(parts)


def _delta(delta: int, timestamp_ms: int) -> bytes:
    for number in (delta, timestamp_ms):
        if not -(1 << 63) <= number < 1 << 63:
            text = (
                f"timestamp {timestamp_ms}, or how far it is from the first, has more than 64 bits"
            )
            raise ValueError(text)
    return encode_varint(delta)
