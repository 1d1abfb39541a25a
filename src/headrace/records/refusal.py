"""Which records of a batch a broker refuses, and why."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import ApiError, ErrorCode, InvalidRecordError
from headrace.records.batch import MAX_RECORDS, BatchHeader


class InvalidRecordsError(InvalidRecordError):
    """Records of a batch broke a rule; `numbers` says which, the first few of them, and `reason` what is wrong."""

    def __init__(self, message: str, numbers: Sequence[int], reason: str) -> None:
        self.numbers = numbers
        self.reason = reason
        super().__init__(message)


def require_few(header: BatchHeader) -> None:
    """Refuse a batch with more records than are looked into.

    Raises:
        ApiError: MESSAGE_TOO_LARGE, upon which producers divide a batch.
    """
    if header.records_count > MAX_RECORDS:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.records_count} records; {MAX_RECORDS} are the most where records expire, or wait",
        )
