"""Extreme values in JSON that Spark writes and other JSON parsers reject.

Spark writes NaN and the infinities as strings, because JSON has no such numbers. Years after 9999 have a sign and more
digits, and years before 0 have a sign. The decoder of `json_values.py` rejects these values. The decoder then decodes
the whole value again with the types of this module.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Final

_DATE: Final = re.compile(r"([+-]?\d{4,9})-(\d\d)-(\d\d)", re.ASCII)
_TIME: Final = re.compile(
    r"([+-]?\d{4,9}-\d\d-\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6})\d*)?(Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_DAY: Final = 86_400_000_000
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""The length of the Gregorian calendar's cycle in years and in days."""
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
MAX_FLOAT: Final = 3.4028235677973362e38
"""The largest number that rounds to a FLOAT. Java writes the largest FLOAT as 3.4028235E38, which is a bit larger."""


class Number(float):
    """A DOUBLE, which may be NaN or infinite."""


class Single(float):
    """A FLOAT, which may be NaN or infinite."""


class Days(int):
    """A DATE, in days since 1970."""


class Micros(int):
    """A TIMESTAMP, in microseconds since 1970."""


class LocalMicros(int):
    """A TIMESTAMP_NTZ, in microseconds since 1970, without a time zone."""


def decode_hook(kind: type, value: Any) -> Any:
    """Convert a value that msgspec parsed to one of the types above.

    Raises:
        ValueError: The value does not fit the type.
    """
    if kind is Number or kind is Single:
        return kind(_number(kind, value))
    if not isinstance(value, str):
        if kind is Micros and type(value) in {int, float}:
            return Micros(round(value * 1_000_000))
        raise ValueError(f"{value!r} is not a text")
    if kind is Days:
        return Days(_days(value))
    return kind(_micros(value, local=kind is LocalMicros))


def _number(kind: type, value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if type(value) not in {int, float} or (kind is Single and abs(value) > MAX_FLOAT):
        raise ValueError(f"{value!r} is not a number of this type")
    return float(value)


def _days(text: str) -> int:
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date")
    cycles, year = divmod(int(match[1]), _CYCLE_YEARS)
    # `dt.date` has the years 1 to 9999 only: compute with the corresponding year from 400 to 799.
    day = dt.date(year + _CYCLE_YEARS, int(match[2]), int(match[3])).toordinal()
    return day - _EPOCH_DAY + (cycles - 1) * _CYCLE_DAYS


def _micros(text: str, *, local: bool) -> int:
    match = _TIME.fullmatch(text)
    if match is None or (local and match[6]):
        raise ValueError(f"{text!r} is not a time")
    time = dt.time(int(match[2]), int(match[3]), int(match[4]))
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    zone = match[6] or "Z"
    if zone != "Z":
        minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        seconds -= (60 if zone[0] == "+" else -60) * minutes
    return _days(match[1]) * _DAY + seconds * 1_000_000 + int((match[5] or "").ljust(6, "0"))
