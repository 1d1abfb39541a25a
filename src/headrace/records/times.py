"""The timestamps of a batch's records, without decoding whole records: for lookups by time.

Both searches are generators that yield after every few thousand records, because a batch may hold millions. They keep
only the bytes that they search.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from headrace.errors import CorruptRecordError
from headrace.records.batch import MIN_RECORD_SIZE, BatchHeader, TimestampType
from headrace.records.varint import MAX_VARLONG_SIZE, decode_varint, wrap
from headrace.types import MAX_INT64, MIN_INT64, NO_TIMESTAMP

RECORDS_AT_ONCE: Final = 1 << 13
"""The number of records that are walked between two yields: some milliseconds."""


def first_since(
    header: BatchHeader, data: bytes, timestamp: int, offsets: range
) -> Generator[int, None, tuple[int, int] | None]:
    """Find the first record with this timestamp or a later one whose offset is in `offsets`.

    Yields:
        The number of records that will be walked until the next yield.

    Args:
        header: The batch's header.
        data: The decompressed bytes of its records.
        timestamp: The timestamp in milliseconds since 1970.
        offsets: The offsets to search.

    Returns:
        The offset and the timestamp of the record; None without one.

    Raises:
        CorruptRecordError: The records before it cannot be decoded, or their number is not the one in the header.
    """
    fixed = None
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        fixed = header.max_timestamp
        if fixed < timestamp:
            return None
        timestamp = MIN_INT64
    base_offset = header.base_offset
    for number, (time, place) in enumerate(_times(header, data)):
        if not number % RECORDS_AT_ONCE:
            yield min(RECORDS_AT_ONCE, header.records_count - number)
        if time >= timestamp:
            offset = base_offset + decode_varint(data, place)[0]
            if offset in offsets:
                return offset, time if fixed is None else fixed
    return None


def newest_since(header: BatchHeader, data: bytes, start_offset: int) -> Generator[int, None, int]:
    """Find the largest timestamp of the records from an offset on, in a batch with the producer's timestamps.

    Yields:
        The number of records that will be walked until the next yield.

    Args:
        header: The batch's header.
        data: The decompressed bytes of its records.
        start_offset: The first offset that counts.

    Returns:
        The timestamp in milliseconds since 1970; -1 without one.

    Raises:
        CorruptRecordError: The records cannot be decoded, or their number is not the one in the header.
    """
    newest, base_offset = NO_TIMESTAMP, header.base_offset
    for number, (time, place) in enumerate(_times(header, data)):
        if not number % RECORDS_AT_ONCE:
            yield min(RECORDS_AT_ONCE, header.records_count - number)
        if time > newest and base_offset + decode_varint(data, place)[0] >= start_offset:
            newest = time
    return newest


def _times(header: BatchHeader, data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the timestamp of each record, and the byte position of its offset delta.

    Raises:
        CorruptRecordError: The records cannot be decoded, or their number is not the one in the header.
    """
    position, size, base = 0, len(data), header.base_timestamp
    count = header.records_count
    if not 0 <= count * MIN_RECORD_SIZE <= size:
        raise CorruptRecordError(f"{count} records claimed in {size} bytes")
    try:
        for _ in range(count):
            low, high = data[position], data[position + 1]
            if low < 0x80:
                length, position = low >> 1, position + 1
            elif high < 0x80:
                length, position = (low & 0x7F | high << 7) >> 1, position + 2
            else:
                length, position = decode_varint(data, position)
            end = position + length
            if length < MIN_RECORD_SIZE - 1 or low & 1 or end > size:
                raise CorruptRecordError(f"record of {length} bytes before byte {position}")
            byte = data[position + 1]  # after the attributes, which have no meaning
            if byte < 0x80:
                delta, place = (byte >> 1) ^ -(byte & 1), position + 2
            else:
                delta, place = decode_varint(data, position + 1, MAX_VARLONG_SIZE)
            time = base + delta
            yield (time if MIN_INT64 <= time <= MAX_INT64 else wrap(time)), place
            position = end
    except IndexError:
        raise CorruptRecordError("a batch ends inside a record") from None
    if position != size:
        raise CorruptRecordError(f"{size - position} bytes after the last record of a batch")
