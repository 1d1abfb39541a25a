"""Which records of a batch a broker refuses, and why; and how much of a batch it looks into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.errors import ApiError, CorruptRecordError, ErrorCode, InvalidRecordError
from headrace.records.batch import BatchHeader
from headrace.records.compression import OutputTooLargeError
from headrace.records.raw import records_of
from headrace.types import Buffer

LOOK_BYTES: Final = 4 << 20
"""Most bytes that compressed records become which a broker looks into: up to 12 milliseconds of decompressing."""
MAX_KEYED: Final = 40 << 10
"""Most records of a batch for a compacted topic."""
MAX_DIRECTED: Final = 10 << 10
"""Most records of a batch of which some expire, or wait: each costs some microseconds. librdkafka sends 10,000."""
MAX_HEADERS: Final = 1 << 14
"""Most headers, in all records of a batch that name a directive."""


class InvalidRecordsError(InvalidRecordError):
    """Records of a batch broke a rule; `numbers` says which, the first few of them, and `reason` what is wrong."""

    def __init__(self, message: str, numbers: Sequence[int], reason: str) -> None:
        self.numbers = numbers
        self.reason = reason
        super().__init__(message)


def require_few(header: BatchHeader, most: int, where: str) -> None:
    """Refuse a batch with more records than are looked into.

    Args:
        header: The batch's header.
        most: The most records.
        where: For which batches that is the most, for the message.

    Raises:
        ApiError: MESSAGE_TOO_LARGE, upon which producers divide a batch.
    """
    if header.records_count > most:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.records_count} records; {most} are the most {where}; send smaller batches",
        )


def produced_records(header: BatchHeader, batch: Buffer) -> bytes:
    """Return the decompressed records of a produced batch, to look into them.

    Raises:
        ApiError: MESSAGE_TOO_LARGE, upon which producers divide a batch; they decompress to too much.
        InvalidRecordError: They do not decompress.
    """
    try:
        return records_of(header, batch, LOOK_BYTES)
    except OutputTooLargeError as error:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{error}: the records of this topic are looked into; send smaller batches",
        ) from error
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from error
