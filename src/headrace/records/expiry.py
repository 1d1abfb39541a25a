"""The expiry times of the records of a batch: `headrace.ttl-ms` milliseconds after their timestamps, see `directives`.

If a record has several such headers, the last one counts. Three kinds of records never expire: records without a
timestamp, records with a malformed header, and records of a batch with too many records. Such records can only have
been appended while the topic's setting was off.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from headrace.errors import CorruptRecordError, InvalidRecordError
from headrace.records.batch import MAX_RECORDS, BatchHeader, TimestampType
from headrace.records.compression import MAX_DECOMPRESSED_SIZE
from headrace.records.directives import TTL_MS, decode_ms
from headrace.records.raw import headers_in, record_places, records_of
from headrace.records.refusal import (
    LOOK_BYTES,
    MAX_DIRECTED,
    MAX_HEADERS,
    InvalidRecordsError,
    produced_records,
    require_few,
)
from headrace.records.varint import wrap
from headrace.types import MAX_INT64, Buffer

NEVER: Final = MAX_INT64
_NAME: Final = TTL_MS.encode()
_MOST_REPORTED: Final = 100


class Expiry(NamedTuple):
    """The expiry times of the first and the last record of a batch, block or segment, in milliseconds since 1970."""

    earliest: int
    latest: int


NOTHING_EXPIRES: Final = Expiry(NEVER, NEVER)
NO_RECORDS: Final = Expiry(NEVER, -1)
"""The expiry of a batch without a producer's records. It delays the deletion of nothing."""
UNKNOWN: Final = Expiry(0, NEVER)
"""The expiry of a batch that was not decoded: each of its records may have expired, or may never expire."""


def check_expiry(batch: Buffer, data: bytes | None = None) -> Expiry:
    """Return when the records of a produced batch expire.

    Args:
        batch: The batch.
        data: The decompressed bytes of its records; None if they are not decompressed yet.

    Raises:
        InvalidRecordError: A time to live is malformed, its record has no timestamp, or the records cannot be decoded.
        ApiError: MESSAGE_TOO_LARGE; there are more records, or more bytes of records, than the broker decodes.
    """
    header = BatchHeader.parse(batch)
    if header.is_control:
        return NO_RECORDS
    if data is None:
        data = produced_records(header, batch)
    if _NAME not in data:
        return NOTHING_EXPIRES
    require_few(header, MAX_DIRECTED, "with times to live")
    try:
        times = _expiries(header, data)
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from error
    if min(times) >= 0:
        return Expiry(min(times), max(times))
    wrong = [number for number, expiry in enumerate(times) if expiry < 0]
    reason = _what_is_wrong(header, data, wrong[0])
    raise InvalidRecordsError(reason, wrong[:_MOST_REPORTED], reason)


def expiry_at_append(batch: Buffer, *, validate: bool) -> Expiry:
    """Return when the records of an appended batch expire. Batches that the broker built are not refused.

    Raises:
        InvalidRecordError: See `check_expiry`; only if `validate` is true.
    """
    return check_expiry(batch) if validate else expiry_of_batch(BatchHeader.parse(batch), batch)


def _expiries(header: BatchHeader, data: bytes) -> list[int]:
    """Return when each record expires, -1 for a record with a malformed header."""
    times: list[int] = []
    known: dict[bytes, int | None] = {}
    headers_left = MAX_HEADERS
    fixed = None
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        fixed = header.max_timestamp
    for _, end, delta, _, headers_at in record_places(data, header.records_count):
        section = data[headers_at:end]
        if section not in known:
            known[section] = None
            if _NAME in section:
                headers = headers_in(section, headers_left)
                headers_left -= len(headers)
                known[section] = _last_ttl_ms(headers)
        ttl_ms = known[section]
        if ttl_ms is None:
            times.append(NEVER)
        else:
            timestamp = wrap(header.base_timestamp + delta) if fixed is None else fixed
            times.append(min(timestamp + ttl_ms, NEVER) if ttl_ms >= 0 <= timestamp else -1)
    return times


def _last_ttl_ms(headers: Sequence[tuple[bytes, bytes | None]]) -> int | None:
    """Return the time to live in headers, -1 if it is malformed, None without one."""
    ttls = [content for name, content in headers if name == _NAME]
    if not ttls:
        return None
    try:
        return decode_ms(ttls[-1], TTL_MS)
    except InvalidRecordError:
        return -1


def _what_is_wrong(header: BatchHeader, data: bytes, number: int) -> str:
    places = record_places(data, header.records_count)
    _, end, _, _, headers_at = next(islice(places, number, None))
    try:
        for name, content in headers_in(data[headers_at:end], MAX_HEADERS):
            if name == _NAME:
                decode_ms(content, TTL_MS)
    except InvalidRecordError as error:
        return error.message
    return f"a record with a header {TTL_MS} needs a timestamp"


def expiries(header: BatchHeader, data: bytes, most: int = MAX_RECORDS) -> Sequence[int] | None:
    """Return when each record of a stored batch expires.

    None if no record ever expires, or there are more than `most` records.

    Args:
        header: The batch's header.
        data: The decompressed bytes of its records.
        most: The largest number of records for which a batch is decoded.

    Raises:
        CorruptRecordError: The records cannot be decoded.
    """
    if header.is_control or header.records_count > most or _NAME not in data:
        return None
    return [NEVER if expiry < 0 else expiry for expiry in _expiries(header, data)]


def expiry_of_batch(header: BatchHeader, batch: Buffer, *, briefly: bool = True) -> Expiry:
    """Return when the records of a stored batch expire: never, if they cannot be decoded.

    Args:
        header: The batch's header.
        batch: The batch.
        briefly: Whether a batch larger than producers may write now is not decoded, and counts as one that never
            expires.
    """
    if header.is_control or not header.records_count:
        return NO_RECORDS
    most, limit = (MAX_DIRECTED, LOOK_BYTES) if briefly else (MAX_RECORDS, MAX_DECOMPRESSED_SIZE)
    if header.records_count > most:
        return NOTHING_EXPIRES
    try:
        times = expiries(header, records_of(header, batch, limit))
    except CorruptRecordError:
        return NOTHING_EXPIRES
    return NOTHING_EXPIRES if times is None else Expiry(min(times), max(times))
