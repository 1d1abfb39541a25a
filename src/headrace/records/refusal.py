"""The limits of batches whose records a broker decodes, and the errors of records that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.errors import ApiError, CorruptRecordError, ErrorCode, InvalidRecordError
from headrace.records.batch import BatchHeader
from headrace.records.compression import OutputTooLargeError
from headrace.records.raw import records_of
from headrace.types import Buffer

LOOK_BYTES: Final = 4 << 20
"""The largest size in bytes of decompressed records in a batch that a broker decodes: 12 milliseconds of decompression.
"""
MAX_KEYED: Final = 40 << 10
"""The largest number of records in a batch for a compacted topic."""
MAX_DIRECTED: Final = 10 << 10
"""The largest number of records in a batch with times to live or scheduled records: each takes some microseconds.

librdkafka sends batches of up to 10,000 records.
"""
MAX_HEADERS: Final = 1 << 14
"""The largest number of headers, in all records of a batch that names a directive."""


class InvalidRecordsError(InvalidRecordError):
    """Records of a batch break a rule. `numbers` has the first few of them, `reason` says what is wrong."""

    def __init__(self, message: str, numbers: Sequence[int], reason: str) -> None:
        self.numbers = numbers
        self.reason = reason
        super().__init__(message)


def require_few(header: BatchHeader, most: int, where: str) -> None:
    """Refuse a batch with more records than the broker decodes.

    Args:
        header: The batch's header.
        most: The largest number of records.
        where: The kind of batch with this limit, for the message.

    Raises:
        ApiError: MESSAGE_TOO_LARGE, upon which producers split a batch.
    """
    if header.records_count > most:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.records_count} records; a batch {where} has at most {most}. Send smaller batches.",
        )


def produced_records(header: BatchHeader, batch: Buffer) -> bytes:
    """Return the decompressed records of a produced batch.

    Raises:
        ApiError: MESSAGE_TOO_LARGE, upon which producers split a batch: the records decompress to too many bytes.
        InvalidRecordError: The records cannot be decompressed.
    """
    try:
        return records_of(header, batch, LOOK_BYTES)
    except OutputTooLargeError as error:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{error}. The broker decodes the records of this topic: send smaller batches.",
        ) from error
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from error
