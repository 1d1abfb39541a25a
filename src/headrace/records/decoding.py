"""Decoding a slice of a batch's records: the loop in Python, and the accelerator's loop where it is installed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from headrace.errors import CorruptRecordError
from headrace.records.accel import kernels
from headrace.records.batch import (
    LOG_APPEND_TIME_FLAG,
    MIN_RECORD_SIZE,
    BatchHeader,
    TimestampType,
)
from headrace.records.varint import MAX_VARLONG_SIZE, decode_varint, wrap
from headrace.types import MAX_INT64, MIN_INT64, Buffer

R = TypeVar("R", bound=tuple[Any, ...])
Make = Callable[[tuple[Any, ...]], Any]

MAX_HEADERS: Final = 1 << 16
"""The largest number of headers of one record. A header of two bytes takes eighty bytes of memory when it is decoded.
"""

_ONE_BYTE = 64
_decode_fast = None if kernels is None else kernels.decode_records


def decode_slice(  # noqa: PLR0917 - as the accelerator has them
    kind: type[R],
    header: BatchHeader,
    data: Buffer,
    place: int,
    count: int,
    most_bytes: int,
    before: tuple[Any, ...],
    after: tuple[Any, ...],
) -> tuple[list[R], int]:
    """Return `count` records from byte `place` on, and the place after the last one.

    The result ends early with a record with headers that ends `most_bytes` after `place`, or later.
    """
    if _decode_fast is not None:
        fixed = header.max_timestamp if header.attributes & LOG_APPEND_TIME_FLAG else None
        first = header.base_offset, header.base_timestamp
        found = _decode_fast(data, place, count, most_bytes, *first, fixed, kind, before, after)
        if found is not None:
            return found
    if not isinstance(data, bytes):  # the fastest type to read in Python
        data = bytes(data)
    new = partial(tuple.__new__, kind)  # half the cost of calling the class
    make: Any = tuple if before or after else new
    try:
        records, place = _decode_records(data, place, count, place + most_bytes, header, make)
    except IndexError:
        raise CorruptRecordError("a batch ends inside a record") from None
    if (
        abs(header.base_timestamp) > MAX_INT64 - _ONE_BYTE
    ):  # even a delta of one byte may be too large
        records = [make((each[0], wrap(each[1]), *each[2:])) for each in records]
    if before or after:
        records = [new(before + record + after) for record in records]
    return records, place


def too_many_headers(count: int) -> CorruptRecordError:
    """Return the error of a record with more than `MAX_HEADERS` headers."""
    return CorruptRecordError(f"a record with {count} headers; {MAX_HEADERS} are the most")


def as_fastest(data: Buffer) -> Buffer:
    """Return the bytes as the type that is decoded fastest here."""
    return data if _decode_fast is not None else bytes(data)


# Varints of one byte, and lengths and offsets of two bytes, are decoded without calls, which would cost twice as much.
def _decode_records(  # noqa: C901, PLR0912, PLR0915, PLR0917 - one loop without calls
    data: bytes, position: int, count: int, stop_at: int, header: BatchHeader, new: Make
) -> tuple[list[Any], int]:
    records: list[Any] = []
    append, size = records.append, len(data)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.timestamp_type == TimestampType.LOG_APPEND_TIME
    timestamp = header.max_timestamp
    lowest, highest = MIN_INT64 - base_timestamp, MAX_INT64 - base_timestamp
    numbers = iter(range(count))
    for _ in numbers:
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
        low = data[position + 1]  # after the attributes, which have no meaning
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
        if data[position] == 1:  # the varint of -1: no key or value
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
            if position >= stop_at:
                deque(numbers, 0)  # the slice ends with this record
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
    if count > MAX_HEADERS:
        raise too_many_headers(count)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _bytes(data, position, end)
        if name is None:
            raise CorruptRecordError("a record header without a key")
        content, position = _bytes(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    return tuple(headers), position
