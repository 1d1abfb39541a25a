"""Which records of a batch a broker refuses, and why."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import InvalidRecordError


class InvalidRecordsError(InvalidRecordError):
    """Records of a batch broke a rule; `numbers` says which, the first few of them, and `reason` what is wrong."""

    def __init__(self, message: str, numbers: Sequence[int], reason: str) -> None:
        self.numbers = numbers
        self.reason = reason
        super().__init__(message)
