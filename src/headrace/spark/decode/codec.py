"""A decoder of values, which reports the reason for each value that does not decode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.spark.decode.columns import Column

MAX_REASON: Final = 500
"""The most characters of the reason why a value does not decode."""


@dataclass(frozen=True)
class Codec:
    """A decoder in two steps: each value to an object, then all objects to an Arrow column."""

    parse: Callable[[bytes], Any]
    """The function that decodes one value to an object for `column`. Its exception says why a value does not decode."""
    column: Column
    extremes: Callable[[bytes], Any] | None = None
    """A slower decoder that accepts rare values, too. It is used if `parse` raises; None if there is none."""

    def decode(self, values: Sequence[bytes | None]) -> tuple[Any, dict[int, str]]:
        """Decode values to a column. A value that does not decode is null in it.

        Returns:
            The column, and for each value that does not decode its index and the reason.
        """
        parse = self.parse
        errors: dict[int, str] = {}
        try:
            parsed = [None if value is None else parse(value) for value in values]
        except Exception:  # noqa: BLE001 - decoders raise many kinds of exceptions for invalid bytes
            parsed = []
            for row, value in enumerate(values):
                try:
                    parsed.append(None if value is None else self._parse_again(value))
                except Exception as error:  # noqa: BLE001 - decoders raise many kinds of exceptions for invalid bytes
                    parsed.append(None)
                    errors[row] = reason(error)
        try:
            return self.column.build(parsed), errors
        except Exception:  # noqa: BLE001 - for example for numbers that are too large for Arrow
            self._find(parsed, 0, len(parsed), errors)
        for row in errors:
            parsed[row] = None
        return self.column.build(parsed), errors

    def _parse_again(self, value: bytes) -> Any:
        """Decode a value with `parse` or `extremes`. If both fail, raise the exception of `parse`."""
        try:
            return self.parse(value)
        except Exception:
            if self.extremes is not None:
                with contextlib.suppress(Exception):
                    return self.extremes(value)
            raise

    def _find(self, parsed: Sequence[Any], start: int, end: int, errors: dict[int, str]) -> None:
        """Find the values that do not fit the column. The search bisects, because such values are rare."""
        try:
            self.column.build(parsed[start:end])
        except Exception as error:  # noqa: BLE001 - for example for numbers that are too large for Arrow
            if end - start == 1:
                errors[start] = reason(error)
                return
            middle = (start + end) // 2
            self._find(parsed, start, middle, errors)
            self._find(parsed, middle, end, errors)


def reason(error: Exception) -> str:
    """Return the reason in an exception as one line of at most `MAX_REASON` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(
        error, LookupError | TypeError
    ):  # their texts are not understandable without the type
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."
