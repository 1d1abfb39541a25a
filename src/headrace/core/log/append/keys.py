"""The check that every record of a batch has a key: compaction needs one."""

from __future__ import annotations

from typing import Final

from headrace.errors import CorruptRecordError, InvalidRecordError
from headrace.records.batch import BatchHeader
from headrace.records.raw import keyless
from headrace.records.refusal import (
    MAX_KEYED,
    InvalidRecordsError,
    produced_records,
    require_few,
)
from headrace.types import Buffer

_MOST_REPORTED: Final = 100
"""The largest number of records without a key that an error names."""


def require_keys(records: Buffer) -> None:
    """Refuse a batch in which a record has no key or a wrong offset: compaction could not keep or drop such a record.

    Raises:
        InvalidRecordError: A record has no key (`InvalidRecordsError`), the records are not numbered from 0 on, or they
            cannot be decoded.
        ApiError: MESSAGE_TOO_LARGE; the batch has more records, or more bytes of records, than the broker decodes.
    """
    header = BatchHeader.parse(records)
    require_few(header, MAX_KEYED, "on a compacted topic")
    try:
        data = produced_records(header, records)
        numbers = keyless(data, header.records_count, _MOST_REPORTED)
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from error
    if numbers:
        raise InvalidRecordsError(
            "a compacted topic takes only records with a key", numbers, "no key"
        )
