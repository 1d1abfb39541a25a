"""Durations and sizes in readable form (`2h30m`, `64MiB`), and settings with such values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_DURATION: Final = re.compile(r"(?:\d{1,15}(?:ms|[smhd]))+", re.ASCII)
_PART: Final = re.compile(r"(\d+)(ms|[smhd])", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE: Final = re.compile(r"(\d{1,15})([KMGT])i?B?", re.IGNORECASE | re.ASCII)
_SIZES: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NAMED_MS: Final = {"ms": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000}
"""The last word of a setting's name, and the length of that unit in milliseconds."""


def is_duration(text: str) -> bool:
    """Return whether a text is a duration: 500ms, 30s, 15m, 2h30m, 1d."""
    return _DURATION.fullmatch(text) is not None


def duration_ms(text: str) -> int:
    """Return a duration in milliseconds. `is_duration` must be true."""
    return sum(int(count) * _UNITS_MS[unit] for count, unit in _PART.findall(text))


def plain_number(name: str, text: str) -> str:
    """Return the value of a setting as the number that brokers accept, if it is a duration or a size.

    Names that end with `.ms`, `.seconds`, `.minutes` and `.hours` accept durations. Names that end with `.bytes` accept
    sizes: K, M, G and T are powers of 1024, with or without `B` or `iB`. Any other text is returned unchanged. So is a
    duration that is not a whole number of the setting's unit.
    """
    kind = name.rpartition(".")[2]
    given = text.strip()
    if kind == "bytes" and (size := _SIZE.fullmatch(given)):
        return str(int(size[1]) * _SIZES[size[2].upper()])
    if kind in _NAMED_MS and is_duration(given):
        count, rest = divmod(duration_ms(given), _NAMED_MS[kind])
        return text if rest else str(count)
    return text


def plain_numbers(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with durations and sizes as numbers."""
    return {name: plain_number(name, text) for name, text in settings.items()}
