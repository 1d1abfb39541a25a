"""The begin and end of reading, in the forms of `consume --offset` (those of rpk).

    start            from the log start             end              from the log end, only new records
    N   N:           from offset N                  :N               from the start to before offset N
    A:B   A-B        from A to before B             :end             from the start to the present end
    +N               N records after the log start  -N               the last N records of each partition
    @T   @T:         from time T                    @:T   @T1:T2     up to T; from T1 up to T2

A range ends at the latest at the present end of the log. A range that ends before it begins is refused.

A time is milliseconds (13 digits) or seconds (up to 10) since 1970, a day (2013-01-31), an ISO time (UTC unless it
has a zone), `end` as the second of two, or a duration before now: `-15m`, `-2h30m`, `-1d`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from headrace.config.units import duration_ms, is_duration
from headrace.types import TopicPartition

_START_WORDS: Final = frozenset({"start", "beginning", "earliest"})
_END_WORDS: Final = frozenset({"end", "latest"})
_TIME: Final = r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?|[^:T ]*)"
"""Pattern of a day with a time of day, or of a form without colon and blank."""


class OffsetSpecError(ValueError):
    """A text is not in any form of an offset."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The begin or the end of reading."""

    kind: Literal["start", "end", "offset", "after_start", "before_end", "time"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """The range of records to read from each partition."""

    first: Bound
    stop: Bound | None = None
    """The end, exclusive; None: read without end."""


def parse_offset(text: str, now_ms: int) -> OffsetSpec:
    """Read an offset specification.

    Args:
        text: An offset in one of the forms.
        now_ms: The present time in milliseconds since 1970, from which durations count back.

    Raises:
        OffsetSpecError: The text is not in any of the forms.
    """
    if text.startswith("@"):
        return _times(text, now_ms)
    alone = _single(text)
    if alone is not None:
        return OffsetSpec(alone)
    match = re.fullmatch(r"(\d*)(?:([:-])(\d*|end))?", text)
    if match is None or text in {"", ":", "-"} or (match[2] == "-" and not (match[1] and match[3])):
        raise OffsetSpecError(
            f"{text!r} is not an offset: use start, end, N, +N, -N, A:B, :end or @TIME"
        )
    first = Bound("offset", int(match[1])) if match[1] else Bound("start")
    if not match[3]:
        return OffsetSpec(first)
    stop = Bound("end") if match[3] == "end" else Bound("offset", int(match[3]))
    return _range(text, first, stop)


def _range(text: str, first: Bound, stop: Bound) -> OffsetSpec:
    if first.kind == stop.kind and stop.value < first.value:
        raise OffsetSpecError(f"{text!r} ends before it begins")
    return OffsetSpec(first, stop)


def _single(text: str) -> Bound | None:
    """Parse the forms that are one word or one signed number."""
    if text.lower() in _START_WORDS:
        return Bound("start")
    if text.lower() in _END_WORDS:
        return Bound("end")
    if re.fullmatch(r"\+\d+", text):
        return Bound("after_start", int(text))
    if re.fullmatch(r"-\d+", text):
        return Bound("before_end", int(text[1:]))
    return None


def _times(text: str, now_ms: int) -> OffsetSpec:
    first, second = _split_times(text[1:])
    if not first and not second:
        raise OffsetSpecError(f"{text!r} has no time")
    begin = Bound("time", parse_time(first, now_ms)) if first else Bound("start")
    if not second:
        return OffsetSpec(begin)
    if second in _END_WORDS:
        return OffsetSpec(begin, Bound("end"))
    return _range(text, begin, Bound("time", parse_time(second, now_ms)))


def _split_times(text: str) -> tuple[str, str]:
    """Split T1:T2 at the colon that does not belong to a time of day."""
    match = re.fullmatch(rf"({_TIME})(?::({_TIME}))?", text)
    if match is None:
        raise OffsetSpecError(f"{text!r} is not a time or two of them")
    return match[1], match[2] or ""


def parse_time(text: str, now_ms: int) -> int:
    """Return a time in milliseconds since 1970.

    Raises:
        OffsetSpecError: The text is not in any of the forms.
    """
    if re.fullmatch(r"\d{13}", text):
        return int(text)
    if re.fullmatch(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])", text):
        day = f"{text[:4]}-{text[4:6]}-{text[6:]}"
        raise OffsetSpecError(f"{text!r} would be seconds since 1970: for the day use {day}")
    if re.fullmatch(r"\d{1,10}", text):
        return int(text) * 1000
    if is_duration(text.removeprefix("-")):
        return now_ms - duration_ms(text.removeprefix("-"))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OffsetSpecError(
            f"{text!r} is not a time: use milliseconds, 2013-01-31, 2013-01-31T15:00:00Z or -15m"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)


def parse_duration(text: str) -> int:
    """Return a duration in milliseconds.

    Raises:
        OffsetSpecError: The text is not a duration.
    """
    if not is_duration(text):
        raise OffsetSpecError(f"{text!r} is not a duration: use 500ms, 30s, 15m, 2h30m or 1d")
    return duration_ms(text)


Listing = Callable[[int], Mapping[TopicPartition, int]]
"""Looks up the offset of each partition for EARLIEST, LATEST or a timestamp; -1: no record at or after it."""

EARLIEST: Final = -2
LATEST: Final = -1


def resolve(
    spec: OffsetSpec, listing: Listing
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int] | None]:
    """Turn a specification into offsets.

    Args:
        spec: The range to read.
        listing: Looks up offsets; called once for each bound.

    Returns:
        The first offset of each partition; and, if reading ends, the end offset (exclusive).
    """
    starts, ends = dict(listing(EARLIEST)), dict(listing(LATEST))
    firsts = _offsets(spec.first, starts, ends, listing)
    # An offset before or after the log is no error: reading begins at the start or the end of the log.
    begin = {where: min(max(at, starts[where]), ends[where]) for where, at in firsts.items()}
    if spec.stop is None:
        return begin, None
    # A range ends at the present log end: otherwise a partition that never grows so far would block the command.
    stops = _offsets(spec.stop, starts, ends, listing)
    return begin, {where: min(at, ends[where]) for where, at in stops.items()}


def _offsets(
    bound: Bound,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    listing: Listing,
) -> dict[TopicPartition, int]:
    if bound.kind == "start":
        return dict(starts)
    if bound.kind == "end":
        return dict(ends)
    if bound.kind == "offset":
        return dict.fromkeys(starts, bound.value)
    if bound.kind == "after_start":
        return {where: start + bound.value for where, start in starts.items()}
    if bound.kind == "before_end":
        return {where: end - bound.value for where, end in ends.items()}
    found = listing(bound.value)
    return {where: at if at >= 0 else ends[where] for where, at in found.items()}
