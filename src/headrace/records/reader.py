"""Reading the records of batches, in Python, one by one.

About 1.2 million records a second, and eight times as many with the accelerator: for timestamp lookup, the
coordinators' own topics, and clients. The produce and fetch paths of the broker never come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from headrace.errors import CorruptRecordError
from headrace.records.accel import kernels
from headrace.records.batch import (
    HEADER_SIZE,
    MIN_BATCH_LENGTH,
    MIN_RECORD_SIZE,
    BatchHeader,
    TimestampType,
    check_batch,
)
from headrace.records.compression import MAX_DECOMPRESSED_SIZE, Compression, decompress
from headrace.records.varint import MAX_VARLONG_SIZE, decode_varint, wrap
from headrace.types import Buffer

R = TypeVar("R", bound=tuple[Any, ...])

_CODECS: Final = {int(codec): codec for codec in Compression}
_SMALLEST, _LARGEST, _ONE_BYTE = -(2**63), 2**63 - 1, 64
_decode_fast = None if kernels is None else kernels.decode_records


class Record(NamedTuple):
    """One record as it lies in a partition; `timestamp` is in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_records(
    buffer: Buffer,
    *,
    tolerate_truncated: bool = False,
    include_control: bool = False,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
) -> Iterator[Record]:
    """Yield the records of one or more batches, one after the other.

    Args:
        buffer: Batches, as a fetch response or a segment has them.
        tolerate_truncated: Ignore an incomplete batch at the end, as a fetch response may have; else it is an error.
        include_control: Yield the records of control batches too.
        max_decompressed_size: Most bytes that one batch's records may have.

    Raises:
        CorruptRecordError: A batch is damaged; the records before it have been yielded.
    """
    position, end = 0, len(buffer)
    while position < end:
        if tolerate_truncated and _is_cut_off(buffer, position):
            return
        header = check_batch(buffer, position)
        if include_control or not header.is_control:
            yield from decode_batch(header, buffer, position, max_decompressed_size)
        position += header.size


def read_batch(
    buffer: Buffer,
    position: int = 0,
    *,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
) -> tuple[BatchHeader, list[Record]]:
    """Return the header and the records of the batch at `position`.

    Raises:
        CorruptRecordError: The batch is damaged.
    """
    header = check_batch(buffer, position)
    return header, decode_batch(header, buffer, position, max_decompressed_size)


def decode_batch(
    header: BatchHeader,
    buffer: Buffer,
    position: int,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
) -> list[Record]:
    """Decode the records of a batch whose CRC has been checked.

    Raises:
        CorruptRecordError: The records do not decode, or are not as many as the header says.
    """
    return decode_batch_as(Record, header, buffer, position, limit=max_decompressed_size)


def decode_batch_as(
    kind: type[R],
    header: BatchHeader,
    buffer: Buffer,
    position: int,
    *,
    before: tuple[Any, ...] = (),
    after: tuple[Any, ...] = (),
    limit: int = MAX_DECOMPRESSED_SIZE,
) -> list[R]:
    """Decode the records of a batch whose CRC has been checked, as named tuples of another kind.

    Args:
        kind: The named tuple.
        header: The batch's header.
        buffer: What the batch lies in.
        position: Where it begins there.
        before: The fields of all records that come before those of `Record`.
        after: The fields of all records that come after them.
        limit: Most bytes that the records may have.

    Raises:
        CorruptRecordError: The records do not decode, or are not as many as the header says.
    """
    codec = _CODECS.get(header.compression)
    if codec is None:
        raise CorruptRecordError(f"unknown compression {header.compression}")
    data: Buffer = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    if codec != Compression.NONE:
        data = decompress(codec, data, limit)
    return _decode_as(kind, header, data, before, after)


def decode_data(header: BatchHeader, data: Buffer) -> list[Record]:
    """Decode the records of a batch from their decompressed bytes.

    Raises:
        CorruptRecordError: They do not decode, or are not as many as the header says.
    """
    return _decode_as(Record, header, data, (), ())


def _decode_as(
    kind: type[R],
    header: BatchHeader,
    data: Buffer,
    before: tuple[Any, ...],
    after: tuple[Any, ...],
) -> list[R]:
    count = header.records_count
    if not 0 <= count * MIN_RECORD_SIZE <= len(data):
        raise CorruptRecordError(f"{count} records claimed in {len(data)} bytes")
    append_time = header.timestamp_type == TimestampType.LOG_APPEND_TIME
    fixed = header.max_timestamp if append_time else None
    if _decode_fast is not None:
        first = header.base_offset, header.base_timestamp
        found = _decode_fast(data, count, *first, fixed, kind, before, after)
        if found is not None:
            return found
    new = partial(tuple.__new__, kind)  # half the cost of calling the class
    data = (
        data if isinstance(data, bytes) else bytes(data)
    )  # which is the fastest to read in Python
    try:
        make: Any = tuple if before or after else new
        records, end = _decode_records(data, header, make)
        if abs(header.base_timestamp) > _LARGEST - _ONE_BYTE:  # a delta of one byte may be too much
            records = [make((each[0], wrap(each[1]), *each[2:])) for each in records]
    except IndexError:
        raise CorruptRecordError("a batch ends inside a record") from None
    if end != len(data):
        raise CorruptRecordError(f"{len(data) - end} bytes after the last record of a batch")
    if before or after:
        return [new(before + record + after) for record in records]
    return records


def _is_cut_off(buffer: Buffer, position: int) -> bool:
    remaining = len(buffer) - position
    if remaining < HEADER_SIZE:
        return True
    header = BatchHeader.parse(buffer, position)
    return header.batch_length >= MIN_BATCH_LENGTH and header.size > remaining


def _decode_records(  # noqa: C901, PLR0912, PLR0915 - one loop without calls
    data: bytes, header: BatchHeader, new: Callable[[tuple[Any, ...]], Any]
) -> tuple[list[Any], int]:
    # Varints of one byte, and lengths and offsets of two, are decoded in place: calls would cost twice as much.
    records: list[Any] = []
    append = records.append
    position, size = 0, len(data)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.timestamp_type == TimestampType.LOG_APPEND_TIME
    timestamp = header.max_timestamp
    lowest, highest = _SMALLEST - base_timestamp, _LARGEST - base_timestamp
    for _ in range(header.records_count):
        low, high = data[position], data[position + 1]
        if low < 0x80:
            length, position = (low >> 1) ^ -(low & 1), position + 1
        elif high < 0x80:
            length, position = (low & 0x7F | high << 7) >> 1 ^ -(low & 1), position + 2
        else:
            length, position = decode_varint(data, position)
        end = position + length
        if length < MIN_RECORD_SIZE - 1 or end > size:
            raise CorruptRecordError(f"record of {length} bytes at byte {position} does not fit")
        low = data[position + 1]  # behind the attributes, which mean nothing
        if low < 0x80:
            delta, position = (low >> 1) ^ -(low & 1), position + 2
        else:
            delta, position = decode_varint(data, position + 1, MAX_VARLONG_SIZE)
            if not lowest <= delta <= highest:
                delta = wrap(base_timestamp + delta) - base_timestamp
        if not append_time:
            timestamp = base_timestamp + delta
        low, high = data[position], data[position + 1]
        if low < 0x80:
            delta, position = (low >> 1) ^ -(low & 1), position + 1
        elif high < 0x80:
            delta, position = (low & 0x7F | high << 7) >> 1 ^ -(low & 1), position + 2
        else:
            delta, position = decode_varint(data, position)
        key: bytes | None = None
        if data[position] == 1:  # the code of -1: there is none
            position += 1
        else:
            key, position = _bytes(data, position, end)
        low, high = data[position], data[position + 1]
        if low >= 0x80 and high < 0x80 and not low & 1:
            stop = position + 2 + ((low & 0x7F | high << 7) >> 1)
            value: bytes | None = data[position + 2 : stop]
            position = stop
        else:
            value, position = _bytes(data, position, end)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if position < size and data[position]:
            headers, position = _headers(data, position, end)
        else:
            position += 1
        if position != end:
            raise CorruptRecordError(f"a record's length is off by {end - position} bytes")
        append(new((base_offset + delta, timestamp, key, value, headers)))
    return records, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return decode_varint(data, position)


def _bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    byte = data[position]
    if byte < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        length, position = decode_varint(data, position)
    stop = position + length
    if length >= 0 and stop <= end:
        return data[position:stop], stop
    if length == -1:
        return None, position
    raise CorruptRecordError(f"field of {length} bytes at byte {position} does not fit")


def _headers(
    data: bytes, position: int, end: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _varint(data, position)
    if not 0 <= 2 * count <= end - position:
        raise CorruptRecordError(f"{count} headers claimed in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _bytes(data, position, end)
        if name is None:
            raise CorruptRecordError("a record header without a key")
        content, position = _bytes(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    return tuple(headers), position
