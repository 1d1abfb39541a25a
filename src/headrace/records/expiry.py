"""When the records of a batch expire: `headrace.ttl-ms` milliseconds after their timestamps, see `directives`.

Where a header comes more than once the last one counts. A record without a timestamp never expires, nor does one whose
header says nothing that makes sense, nor one of a batch with too many: these can only come from a time at which nobody
looked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.errors import CorruptRecordError, InvalidRecordError
from headrace.records.batch import MAX_RECORDS, BatchHeader
from headrace.records.directives import TTL_MS, decode_ms
from headrace.records.raw import records_of
from headrace.records.reader import Record, decode_data
from headrace.records.refusal import InvalidRecordsError, require_few
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


def check_expiry(batch: Buffer) -> Expiry:
    """Return when the records of a produced batch expire.

    Raises:
        InvalidRecordError: A time to live is not well-formed, or there is no timestamp that it could count from; or the
            records do not decode.
    """
    header = BatchHeader.parse(batch)
    if header.is_control:
        return NO_RECORDS
    try:
        data = records_of(header, batch)
        if _NAME not in data:
            return NOTHING_EXPIRES
        require_few(header)
        records = decode_data(header, data)
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from error
    times = _expiries(records)
    if min(times) >= 0:
        return Expiry(min(times), max(times))
    wrong = [number for number, expiry in enumerate(times) if expiry < 0]
    reason = _what_is_wrong(records[wrong[0]])
    raise InvalidRecordsError(reason, wrong[:_MOST_REPORTED], reason)


def expiry_at_append(batch: Buffer, *, validate: bool) -> Expiry:
    """Return when the records of a batch expire that is appended. What the broker built itself is not refused.

    Raises:
        InvalidRecordError: As `check_expiry`, if the batch is to be validated.
    """
    return check_expiry(batch) if validate else expiry_of_batch(BatchHeader.parse(batch), batch)


def _expiries(records: Sequence[Record]) -> list[int]:
    """Return when each record expires, -1 for one whose header makes no sense."""
    times: list[int] = []
    known: dict[bytes | None, int] = {}
    for record in records:
        expiry, timestamp = NEVER, record[1]
        for name, content in record[4]:
            if name == TTL_MS:
                if content not in known:
                    known[content] = _ttl_ms(content)
                ttl_ms = known[content]
                expiry = min(timestamp + ttl_ms, NEVER) if ttl_ms >= 0 <= timestamp else -1
        times.append(expiry)
    return times


def _ttl_ms(content: bytes | None) -> int:
    try:
        return decode_ms(content, TTL_MS)
    except InvalidRecordError:
        return -1


def _what_is_wrong(record: Record) -> str:
    try:
        for name, content in record.headers:
            if name == TTL_MS:
                decode_ms(content, TTL_MS)
    except InvalidRecordError as error:
        return error.message
    return f"a record with a header {TTL_MS} needs a timestamp"


def expiries(header: BatchHeader, data: bytes) -> Sequence[int] | None:
    """Return when each record of a stored batch expires; None when none ever does.

    Args:
        header: The batch's header.
        data: The bytes of its records, decompressed.

    Raises:
        CorruptRecordError: They do not decode.
    """
    if header.is_control or header.records_count > MAX_RECORDS or _NAME not in data:
        return None
    return [NEVER if expiry < 0 else expiry for expiry in _expiries(decode_data(header, data))]


def expiry_of_batch(header: BatchHeader, batch: Buffer) -> Expiry:
    """Return when the records of a stored batch expire; never, if they do not decode."""
    if header.is_control or not header.records_count:
        return NO_RECORDS
    try:
        times = expiries(header, records_of(header, batch))
    except CorruptRecordError:
        return NOTHING_EXPIRES
    return NOTHING_EXPIRES if times is None else Expiry(min(times), max(times))
