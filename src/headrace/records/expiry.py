"""When the records of a batch expire: `headrace.ttl-ms` milliseconds after their timestamps, see `directives`.

Where a header comes more than once the last one counts. A record without a timestamp never expires, nor does one whose
header says nothing that makes sense, nor one of a batch with too many: these can only come from a time at which nobody
looked.
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
from headrace.types import Buffer

NEVER: Final = 2**63 - 1
_NAME: Final = TTL_MS.encode()
_MOST_REPORTED: Final = 100


class Expiry(NamedTuple):
    """When the first and when the last record of something expires."""

    earliest: int
    latest: int


NOTHING_EXPIRES: Final = Expiry(NEVER, NEVER)
NO_RECORDS: Final = Expiry(NEVER, -1)
"""Of a batch that has no records of a producer: it is in nobody's way."""
UNKNOWN: Final = Expiry(0, NEVER)
"""Of a batch that nobody has looked at: each of its records may have expired, or never will."""


def check_expiry(batch: Buffer, data: bytes | None = None) -> Expiry:
    """Return when the records of a produced batch expire.

    Args:
        batch: The batch.
        data: The bytes of its records, decompressed; None if they have yet to be.

    Raises:
        InvalidRecordError: A time to live is not well-formed, or there is no timestamp that it could count from; or the
            records do not decode.
        ApiError: MESSAGE_TOO_LARGE; there are more records, or more bytes of them, than are looked into.
    """
    header = BatchHeader.parse(batch)
    if header.is_control:
        return NO_RECORDS
    if data is None:
        data = produced_records(header, batch)
    if _NAME not in data:
        return NOTHING_EXPIRES
    require_few(header, MAX_DIRECTED, "where records expire")
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
    """Return when the records of a batch expire that is appended. What the broker built itself is not refused.

    Raises:
        InvalidRecordError: As `check_expiry`, if the batch is to be validated.
    """
    return check_expiry(batch) if validate else expiry_of_batch(BatchHeader.parse(batch), batch)


def _expiries(header: BatchHeader, data: bytes) -> list[int]:
    """Return when each record expires, -1 for one whose header makes no sense."""
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
    """Return the time to live that headers say, -1 for one that makes no sense, None for none."""
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
    """Return when each record of a stored batch expires; None when none ever does, or there are more than `most`.

    Args:
        header: The batch's header.
        data: The bytes of its records, decompressed.
        most: Of how many records a batch is looked into.

    Raises:
        CorruptRecordError: They do not decode.
    """
    if header.is_control or header.records_count > most or _NAME not in data:
        return None
    return [NEVER if expiry < 0 else expiry for expiry in _expiries(header, data)]


def expiry_of_batch(header: BatchHeader, batch: Buffer, *, briefly: bool = True) -> Expiry:
    """Return when the records of a stored batch expire; never, if they do not decode.

    Args:
        header: The batch's header.
        batch: The batch.
        briefly: Whether a batch that is larger than producers may write by now is not looked into, but expires never.
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
