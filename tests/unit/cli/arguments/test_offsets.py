"""Forms of --offset, and the offsets they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.arguments.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    OffsetSpec,
    OffsetSpecError,
    parse_offset,
    parse_time,
    resolve,
)
from headrace.types import TopicPartition

NOW = 1_700_000_000_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("start", OffsetSpec(Bound("start"))),
        ("Earliest", OffsetSpec(Bound("start"))),
        ("end", OffsetSpec(Bound("end"))),
        ("5", OffsetSpec(Bound("offset", 5))),
        ("5:", OffsetSpec(Bound("offset", 5))),
        (":5", OffsetSpec(Bound("start"), Bound("offset", 5))),
        ("5:9", OffsetSpec(Bound("offset", 5), Bound("offset", 9))),
        ("5-9", OffsetSpec(Bound("offset", 5), Bound("offset", 9))),
        ("5:end", OffsetSpec(Bound("offset", 5), Bound("end"))),
        (":end", OffsetSpec(Bound("start"), Bound("end"))),
        ("+3", OffsetSpec(Bound("after_start", 3))),
        ("-3", OffsetSpec(Bound("before_end", 3))),
        ("@1357000000000", OffsetSpec(Bound("time", 1357000000000))),
        ("@1357000000", OffsetSpec(Bound("time", 1357000000000))),
        ("@2013-01-01:", OffsetSpec(Bound("time", 1356998400000))),
        ("@:2013-01-01", OffsetSpec(Bound("start"), Bound("time", 1356998400000))),
        (
            "@2013-01-01T05:15:00Z:2013-01-02",
            OffsetSpec(Bound("time", 1357017300000), Bound("time", 1357084800000)),
        ),
        ("@2013-01-01T05:15:00.250+01:00", OffsetSpec(Bound("time", 1357013700250))),
        ("@2013-01-01 05:15", OffsetSpec(Bound("time", 1357017300000))),
        ("@2013-01-01 05:15:00.250+01:00", OffsetSpec(Bound("time", 1357013700250))),
        (
            "@2013-01-01 05:15:2013-01-02 05:15:30Z",
            OffsetSpec(Bound("time", 1357017300000), Bound("time", 1357103730000)),
        ),
        ("@2013-01-01 05:15:end", OffsetSpec(Bound("time", 1357017300000), Bound("end"))),
        ("5:5", OffsetSpec(Bound("offset", 5), Bound("offset", 5))),
        ("@-15m", OffsetSpec(Bound("time", NOW - 900_000))),
        ("@-1h30m:-5s", OffsetSpec(Bound("time", NOW - 5_400_000), Bound("time", NOW - 5_000))),
        ("@-1d:end", OffsetSpec(Bound("time", NOW - 86_400_000), Bound("end"))),
    ],
)
def test_every_form_of_an_offset_is_parsed(text: str, spec: OffsetSpec) -> None:
    assert parse_offset(text, NOW) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "-",
        "x",
        "5:4:3",
        "5:2",
        "5-2",
        "@2013-01-02:2013-01-01",
        "@-5s:-1m",
        "@20130102",
        "1.5",
        "5-",
        "--3",
        "@",
        "@:",
        "@x",
        "@2013-13-01",
        "@-5y",
        "+x",
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(OffsetSpecError):
        parse_offset(text, NOW)


DAYS = st.sampled_from(["2013-01-01", "2031-12-31"])
CLOCKS = st.sampled_from(["00:30", "23:59:59", "05:15:00.250"])
ZONES = st.sampled_from(["", "Z", "+01:00", "-05:30"])
MOMENTS = st.one_of(
    st.builds("{}{}{}{}".format, DAYS, st.sampled_from("T "), CLOCKS, ZONES),
    DAYS,
    st.sampled_from(["1357017300", "1357017300000", "-15m", "2h30m"]),
)


@given(MOMENTS, MOMENTS)
def test_a_range_of_times_is_split_between_them(first: str, second: str) -> None:
    begin, end = parse_time(first, NOW), parse_time(second, NOW)
    text = f"@{first}:{second}"
    if end < begin:
        with pytest.raises(OffsetSpecError, match="ends before it begins"):
            parse_offset(text, NOW)
    else:
        assert parse_offset(text, NOW) == OffsetSpec(Bound("time", begin), Bound("time", end))
    assert parse_offset(f"@{first}", NOW) == OffsetSpec(Bound("time", begin))


@given(st.text("0123456789:-+@TZendsmh ", max_size=20))
def test_any_text_is_a_form_or_refused(text: str) -> None:
    try:
        parse_offset(text, NOW)
    except OffsetSpecError:
        return


def test_times_without_a_zone_are_utc() -> None:
    assert parse_time("2013-01-01T05:15:00", NOW) == parse_time("2013-01-01T05:15:00Z", NOW)


def listing(target: int) -> dict[TopicPartition, int]:
    """Partition 0 holds offsets 10 to 19, one each millisecond from 100 on; partition 1 is empty at 5."""
    if target == EARLIEST:
        return {T0: 10, T1: 5}
    if target == LATEST:
        return {T0: 20, T1: 5}
    return {T0: max(10, 10 + target - 100) if target < 110 else -1, T1: -1}


@pytest.mark.parametrize(
    ("spec", "begin", "stops"),
    [
        (OffsetSpec(Bound("start")), {T0: 10, T1: 5}, None),
        (OffsetSpec(Bound("end")), {T0: 20, T1: 5}, None),
        (OffsetSpec(Bound("offset", 12)), {T0: 12, T1: 5}, None),
        (OffsetSpec(Bound("offset", 3)), {T0: 10, T1: 5}, None),
        (OffsetSpec(Bound("after_start", 3)), {T0: 13, T1: 5}, None),
        (OffsetSpec(Bound("before_end", 3)), {T0: 17, T1: 5}, None),
        (OffsetSpec(Bound("before_end", 300)), {T0: 10, T1: 5}, None),
        (OffsetSpec(Bound("start"), Bound("end")), {T0: 10, T1: 5}, {T0: 20, T1: 5}),
        (OffsetSpec(Bound("offset", 12), Bound("offset", 15)), {T0: 12, T1: 5}, {T0: 15, T1: 5}),
        (OffsetSpec(Bound("offset", 12), Bound("offset", 99)), {T0: 12, T1: 5}, {T0: 20, T1: 5}),
        (OffsetSpec(Bound("time", 104)), {T0: 14, T1: 5}, None),
        (OffsetSpec(Bound("time", 104), Bound("time", 106)), {T0: 14, T1: 5}, {T0: 16, T1: 5}),
        (OffsetSpec(Bound("time", 500)), {T0: 20, T1: 5}, None),
    ],
)
def test_an_offset_is_resolved_to_a_range(spec: OffsetSpec, begin, stops) -> None:
    assert resolve(spec, listing) == (begin, stops)
