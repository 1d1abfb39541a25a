"""The records of a batch as slices of its bytes, for code that only looks at keys, and keeps or drops whole records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.errors import CorruptRecordError, InvalidRecordError
from headrace.records.batch import HEADER_SIZE, MIN_RECORD_SIZE, BatchHeader
from headrace.records.compression import MAX_DECOMPRESSED_SIZE, Compression, decompress
from headrace.records.varint import MAX_VARLONG_SIZE, decode_varint, encode_varint, wrap
from headrace.types import Buffer

RecordPlace = tuple[int, int, int, int, int]
"""First byte, byte after the last, timestamp delta, offset delta, byte at which the headers begin."""
RawRecord = tuple[int, int, int, int, bytes | None, bool]
"""First byte, byte after the last, timestamp delta, offset delta, key, whether there is a value."""

_CODECS: Final = {int(codec): codec for codec in Compression}


class Meter:
    """Counts the bytes that were decompressed."""

    __slots__ = ("decompressed",)

    def __init__(self) -> None:
        self.decompressed = 0
        """The number of bytes that records were decompressed to in this process, or could have been where that failed.
        """


METER: Final = Meter()
"""The meter of `records_of`. The difference over a call is the work of the call."""


def records_of(header: BatchHeader, batch: Buffer, limit: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Return the decompressed bytes of a batch's records.

    Args:
        header: The batch's header.
        batch: The batch.
        limit: The largest size in bytes to which records are decompressed.

    Raises:
        CorruptRecordError: The records cannot be decompressed, or only to more than `limit` bytes.
    """
    codec = _CODECS.get(header.compression)
    if codec is None:
        raise CorruptRecordError(f"unknown compression {header.compression}")
    if not header.records_count:
        return b""
    work = limit
    try:
        data = decompress(codec, memoryview(batch)[HEADER_SIZE : header.size], limit)
        work = len(data)
    finally:
        METER.decompressed += work
    return data


def iterate_raw(data: bytes, count: int) -> Iterator[RawRecord]:
    """Yield the records in the decompressed bytes of a batch one at a time, as there may be millions.

    Raises:
        CorruptRecordError: The bytes do not hold exactly this number of records.
    """
    position, size = 0, len(data)
    try:
        for _ in range(count):
            start = position
            length, position = _varint(data, position)
            end = position + length
            if length < MIN_RECORD_SIZE - 1 or end > size:
                raise CorruptRecordError(f"record of {length} bytes at byte {start} does not fit")
            position += 1
            byte = data[position]
            if byte < 0x80:
                timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                timestamp_delta, position = decode_varint(data, position, MAX_VARLONG_SIZE)
            offset_delta, position = _varint(data, position)
            length, position = _varint(data, position)
            key: bytes | None = None
            if length >= 0:
                key = data[position : position + length]
                position += length
            # A value length of -1 is one byte, 1. It means no value, which deletes the key.
            has_value = data[position] != 1
            if position >= end:
                raise CorruptRecordError(f"the key of the record at byte {start} does not fit")
            yield start, end, timestamp_delta, offset_delta, key, has_value
            position = end
    except IndexError:
        raise CorruptRecordError("a batch ends inside a record") from None
    if position != size:
        raise CorruptRecordError(f"{size - position} bytes after the last record of a batch")


def record_places(  # noqa: PLR0912 - one loop with few calls
    data: bytes, count: int
) -> Iterator[RecordPlace]:
    """Yield the places of records and their headers, and their deltas. Keys, values and headers are skipped.

    Raises:
        CorruptRecordError: The bytes do not hold exactly this number of records.
    """
    position, size = 0, len(data)
    try:
        for _ in range(count):
            start = position
            length, position = _varint(data, position)
            end = position + length
            if length < MIN_RECORD_SIZE - 1 or end > size:
                raise CorruptRecordError(f"record of {length} bytes at byte {start} does not fit")
            byte = data[position + 1]  # after the attributes, which have no meaning
            if byte < 0x80:
                timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 2
            else:
                timestamp_delta, position = decode_varint(data, position + 1, MAX_VARLONG_SIZE)
            offset_delta, position = _varint(data, position)
            for _ in ("key", "value"):
                byte = data[position]
                if byte < 0x80:
                    length, position = (byte >> 1) ^ -(byte & 1), position + 1
                else:
                    length, position = decode_varint(data, position)
                if length > 0:
                    position += length
            if position >= end:
                raise CorruptRecordError(f"the value of the record at byte {start} does not fit")
            yield start, end, timestamp_delta, offset_delta, position
            position = end
    except IndexError:
        raise CorruptRecordError("a batch ends inside a record") from None
    if position != size:
        raise CorruptRecordError(f"{size - position} bytes after the last record of a batch")


def headers_in(data: bytes, most: int) -> list[tuple[bytes, bytes | None]]:
    """Return the headers of a record, from the bytes where they begin to the end of the record.

    Raises:
        CorruptRecordError: The bytes are not headers, or there are more than `most`.
    """
    try:
        count, position = _varint(data, 0)
        if not 0 <= count <= most:
            raise CorruptRecordError(f"{count} headers in a record, {most} are the most")
        headers: list[tuple[bytes, bytes | None]] = []
        for _ in range(count):
            byte = data[position]
            if byte < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = decode_varint(data, position)
            name, position = data[position : position + length], position + length
            value: bytes | None = None
            size, position = _varint(data, position)
            if size >= 0:
                value, position = data[position : position + size], position + size
            if length < 0 or position > len(data):
                raise CorruptRecordError("a record ends inside its headers")
            headers.append((name, value))
    except IndexError:
        raise CorruptRecordError("a record ends inside its headers") from None
    if position != len(data):
        raise CorruptRecordError(f"{len(data) - position} bytes after the headers of a record")
    return headers


def keyless(  # noqa: C901, PLR0912, PLR0915 - one loop without calls
    data: bytes, count: int, most: int
) -> list[int]:
    """Return the numbers of the first records without a key, at most `most` of them.

    Raises:
        InvalidRecordError: The records are not numbered from 0 on.
        CorruptRecordError: The bytes do not hold exactly this number of records.
    """
    position, size = 0, len(data)
    found: list[int] = []
    try:
        for number in range(count):
            low, high = data[position], data[position + 1]
            if low < 0x80:
                length, position = (low >> 1) ^ -(low & 1), position + 1
            elif high < 0x80:
                length, position = (low & 0x7F | high << 7) >> 1 ^ -(low & 1), position + 2
            else:
                length, position = decode_varint(data, position)
            end = position + length
            if length < MIN_RECORD_SIZE - 1 or end > size:
                raise CorruptRecordError(
                    f"record of {length} bytes before byte {position} does not fit"
                )
            if data[position + 1] < 0x80:
                position += 2
            else:
                _, position = decode_varint(data, position + 1, MAX_VARLONG_SIZE)
            low = data[position]
            if low < 0x80:
                delta, position = (low >> 1) ^ -(low & 1), position + 1
            else:
                delta, position = decode_varint(data, position)
            if delta != number:
                raise InvalidRecordError(
                    f"record {number} of the batch has offset delta {delta}; it has to be {number}"
                )
            low = data[position]
            if low < 0x80:
                length, position = (low >> 1) ^ -(low & 1), position + 1
            else:
                length, position = decode_varint(data, position)
            if length >= 0:
                position += length
            elif len(found) < most:
                found.append(number)
            if position >= end:
                raise CorruptRecordError(f"the key of record {number} does not fit")
            position = end
    except IndexError:
        raise CorruptRecordError("a batch ends inside a record") from None
    if position != size:
        raise CorruptRecordError(f"{size - position} bytes after the last record of a batch")
    return found


def record_starts(data: bytes, count: int) -> list[int]:
    """Return where each record begins in the decompressed bytes of a batch.

    This takes a seventh of the time of `iterate_raw`.

    Raises:
        CorruptRecordError: The bytes do not hold exactly this number of records.
    """
    starts: list[int] = []
    position = 0
    try:
        for _ in range(count):
            starts.append(position)
            low, high = data[position], data[position + 1]
            if low < 0x80:
                length, position = low >> 1, position + 1
            elif high < 0x80:
                length, position = (low & 0x7F | high << 7) >> 1, position + 2
            else:
                length, position = decode_varint(data, position)
            if length < MIN_RECORD_SIZE - 1 or low & 1:
                raise CorruptRecordError(f"record of {length} bytes at byte {starts[-1]}")
            position += length
    except IndexError:
        raise CorruptRecordError("a batch ends inside a record") from None
    if position != len(data):
        raise CorruptRecordError(f"{len(data) - position} bytes after the last record of a batch")
    return starts


def timestamp_delta_at(data: bytes, start: int) -> int:
    """Return the timestamp delta of the record that begins at a position."""
    _, position = _varint(data, start)
    return decode_varint(data, position + 1, MAX_VARLONG_SIZE)[0]


def shift_timestamp(record: bytes, shift: int) -> bytes:
    """Return a record with `shift` added to its timestamp delta, for a batch with another base timestamp.

    Delta and base timestamp may be up to 2^64 apart. Both wrap, and so does their sum.
    """
    _, position = _varint(record, 0)
    delta, rest = decode_varint(record, position + 1, MAX_VARLONG_SIZE)
    body = record[position : position + 1] + encode_varint(wrap(delta + shift)) + record[rest:]
    return encode_varint(len(body)) + body


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return decode_varint(data, position)
