"""A decoder of values: bytes to objects, objects to an Arrow column, with an error for each value that does not decode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.spark.decode.columns import Column

MAX_REASON: Final = 500
"""Characters of what is wrong with a value."""


@dataclass(frozen=True)
class Codec:
    """A decoder: values one by one to objects, objects together to a column."""

    parse: Callable[[bytes], Any]
    """Returns what `column` takes, or raises whatever says why a value does not decode."""
    column: Column
    extremes: Callable[[bytes], Any] | None = None
    """Tried where `parse` raises: it is slower, and takes what is rarely there."""

    def decode(self, values: Sequence[bytes | None]) -> tuple[Any, dict[int, str]]:
        """Return the column of values, and what is wrong with those that became null because they do not decode."""
        parse = self.parse
        errors: dict[int, str] = {}
        try:
            parsed = [None if value is None else parse(value) for value in values]
        except Exception:  # noqa: BLE001 - whatever a decoder says of bytes from anywhere
            parsed = []
            for row, value in enumerate(values):
                try:
                    parsed.append(None if value is None else self._parse_again(value))
                except Exception as error:  # noqa: BLE001 - whatever a decoder says of bytes from anywhere
                    parsed.append(None)
                    errors[row] = reason(error)
        try:
            return self.column.build(parsed), errors
        except Exception:  # noqa: BLE001 - of numbers that Arrow cannot hold, for example
            self._find(parsed, 0, len(parsed), errors)
        for row in errors:
            parsed[row] = None
        return self.column.build(parsed), errors

    def _parse_again(self, value: bytes) -> Any:
        """Return what any of the decoders makes of a value, or raise what the first one says."""
        try:
            return self.parse(value)
        except Exception:
            if self.extremes is not None:
                with contextlib.suppress(Exception):
                    return self.extremes(value)
            raise

    def _find(self, parsed: Sequence[Any], start: int, end: int, errors: dict[int, str]) -> None:
        """Find the values that no column can hold, by halves: few are wrong."""
        try:
            self.column.build(parsed[start:end])
        except Exception as error:  # noqa: BLE001 - of numbers that Arrow cannot hold, for example
            if end - start == 1:
                errors[start] = reason(error)
                return
            middle = (start + end) // 2
            self._find(parsed, start, middle, errors)
            self._find(parsed, middle, end, errors)


def reason(error: Exception) -> str:
    """Return what is wrong in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, LookupError | TypeError):  # their texts alone say little
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."
