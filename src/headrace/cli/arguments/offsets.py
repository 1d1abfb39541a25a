"""Where to begin and end reading, as `consume --offset` says it (rpk's forms).

    start            from the log start             end              from the log end, only what comes
    N   N:           from offset N                  :N               from the start up to, without, offset N
    A:B   A-B        from A up to, without, B       :end             from the start up to where the log ends now
    +N               N records after the log start  -N               the last N records of each partition
    @T   @T:         from time T                    @:T   @T1:T2     up to T; from T1 up to T2

A range is taken of what the log holds now: it ends, at the latest, where the log ends. One that ends before it begins
is refused.

A time is milliseconds (13 digits) or seconds (up to 10) since 1970, a day (2013-01-31), an ISO time (UTC unless it
says otherwise), `end` as the second of two, or a duration before now: `-15m`, `-2h30m`, `-1d`.
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
"""A day with a time of day, or a form that has neither a colon nor a blank."""


class OffsetSpecError(ValueError):
    """An offset is given in none of the forms."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read."""

    kind: Literal["start", "end", "offset", "after_start", "before_end", "time"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """What is read of each partition."""

    first: Bound
    stop: Bound | None = None
    """One past the last; None reads on for ever."""


def parse_offset(text: str, now_ms: int) -> OffsetSpec:
    """Read an offset specification.

    Args:
        text: One of the forms.
        now_ms: The time that durations count back from.

    Raises:
        OffsetSpecError: It is in none of the forms.
    """
    if text.startswith("@"):
        return _times(text, now_ms)
    alone = _single(text)
    if alone is not None:
        return OffsetSpec(alone)
    match = re.fullmatch(r"(\d*)(?:([:-])(\d*|end))?", text)
    if match is None or text in {"", ":", "-"} or (match[2] == "-" and not (match[1] and match[3])):
        raise OffsetSpecError(
            f"{text!r} is no offset: use start, end, N, +N, -N, A:B, :end or @TIME"
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
    """Read the forms that are one word or one signed number."""
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
        OffsetSpecError: It is in none of the forms.
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
            f"{text!r} is no time: use milliseconds, 2013-01-31, 2013-01-31T15:00:00Z or -15m"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)


def parse_duration(text: str) -> int:
    """Return a duration in milliseconds.

    Raises:
        OffsetSpecError: It has another form.
    """
    if not is_duration(text):
        raise OffsetSpecError(f"{text!r} is no duration: use 500ms, 30s, 15m, 2h30m or 1d")
    return duration_ms(text)


Listing = Callable[[int], Mapping[TopicPartition, int]]
"""From EARLIEST, LATEST or a timestamp to an offset of each partition (-1: no record that late)."""

EARLIEST: Final = -2
LATEST: Final = -1


def resolve(
    spec: OffsetSpec, listing: Listing
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int] | None]:
    """Turn a specification into offsets.

    Args:
        spec: What is to be read.
        listing: Looks offsets up; called once per question.

    Returns:
        The first offset of each partition; and, unless it is read for ever, one past the last.
    """
    starts, ends = dict(listing(EARLIEST)), dict(listing(LATEST))
    firsts = _offsets(spec.first, starts, ends, listing)
    # What the log no longer has, or does not have yet, is not an error: reading begins at its edge.
    begin = {where: min(max(at, starts[where]), ends[where]) for where, at in firsts.items()}
    if spec.stop is None:
        return begin, None
    # A range ends where the log ends now: a partition that never gets so far must not keep the command waiting.
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
