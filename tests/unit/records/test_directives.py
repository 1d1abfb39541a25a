from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.errors import ConfigError, InvalidRecordError, InvalidRequestError
from headrace.records.batch import BatchHeader
from headrace.records.builder import Headers, build_batch
from headrace.records.directives import MAX_TIME_MS, TTL_MS, decode_ms, directives
from headrace.records.raw import records_of
from headrace.records.tags import MAX_TAGS, TagFilter


def test_directives_are_headers_behind_those_of_the_program() -> None:
    given = (("a", b"1"),)
    assert directives((), delay_ms=0) == (("headrace.delay-ms", b"0"),)
    assert directives(given, ttl_ms=5, deliver_at_ms=MAX_TIME_MS, tags=["x", "ü"]) == (
        ("a", b"1"),
        ("headrace.ttl-ms", b"5"),
        ("headrace.deliver-at-ms", b"253402300799999"),
        ("headrace.tag", b"x"),
        ("headrace.tag", "ü".encode()),
    )
    assert decode_ms(b"0005", TTL_MS) == 5


@pytest.mark.parametrize("ttl_ms", [-1, MAX_TIME_MS + 1, 1.5, "5"])
def test_a_time_out_of_range_is_refused_at_once(ttl_ms: Any) -> None:
    with pytest.raises(ConfigError, match=r"headrace\.ttl-ms is a whole number"):
        directives((), ttl_ms=ttl_ms)


@pytest.mark.parametrize("tags", ["ab", [""], ["x" * 256], [b"a"], [None]])
def test_bad_tags_are_refused_at_once(tags: Any) -> None:
    for use in (lambda: directives((), tags=tags), lambda: TagFilter.of(tags)):
        with pytest.raises(ConfigError, match="tag"):
            use()


@pytest.mark.parametrize("content", [b"1e3", b"", None, b"9" * 15, b"0x1"])
def test_an_invalid_time_is_refused(content: bytes | None) -> None:
    with pytest.raises(InvalidRecordError, match="decimal number"):
        decode_ms(content, TTL_MS)


def test_a_filter_goes_through_a_request() -> None:
    wanted = TagFilter.of({"b", "a", "x" * 255})
    assert TagFilter.decode(wanted.encode()).tags == wanted.tags == {b"a", b"b", b"x" * 255}
    for malformed in (
        b"",
        b"\x01",
        b"\x02\x01a",
        b"\x01\x00",
        b"\x01\x02a",
        b"\x01\x01a\x00",
        b"\x01" + b"\x01a" * (MAX_TAGS + 1),
        bytes(20_000),
    ):
        with pytest.raises(InvalidRequestError):
            TagFilter.decode(malformed)
    for tags in ([], [str(number) for number in range(MAX_TAGS + 1)]):
        with pytest.raises(ConfigError, match="1 to 64"):
            TagFilter.of(tags)


def test_only_whole_tags_in_headers_of_that_name_count() -> None:
    headers: list[Headers] = [
        [("headrace.tag", b"ab")],
        [("headrace.tags", b"a")],
        [("x", b"headrace.tag\x02a")],
        [("other", b""), ("headrace.tag", b"b"), ("headrace.tag", b"a")],
        [("headrace.tag", None)],
    ]
    batch = build_batch([(None, b"v", each, 1) for each in headers])
    header = BatchHeader.parse(batch)
    data = records_of(header, batch)
    assert TagFilter.of(["a"]).select(header, data) == [False, False, False, True, False]
    assert TagFilter.of(["c"]).select(header, data) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_search_for_many_tags_equals_the_union_of_searches_for_each(seed: int) -> None:
    choice = random.Random(seed)
    names = [choice.randbytes(choice.choice([1, 2, 63, 64, 255])).hex()[:255] for _ in range(12)]
    traps = [b"\x18headrace.tag", b"\x18headrace.tag" + b"\xff" * 9, b"headrace.tag", b""]
    records = [
        (
            choice.choice(traps),
            choice.choice(traps),
            [("headrace.tag", choice.choice(names).encode()) for _ in range(choice.randrange(3))],
            1,
        )
        for _ in range(choice.randrange(1, 60))
    ]
    batch = build_batch(records)
    header = BatchHeader.parse(batch)
    data = records_of(header, batch)
    wanted = choice.sample(names, choice.choice([5, 9]))
    each = [TagFilter.of([tag]).select(header, data) for tag in wanted]
    expected = [any(one) for one in zip(*[passes for passes in each if passes], strict=True)]
    assert TagFilter.of(wanted).select(header, data) == (expected or None)


def test_a_batch_with_too_many_tags_is_sent_unfiltered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.records.tags.MAX_FOUND", 3)
    for count, passes in ((3, None), (4, [True] * 4)):
        batch = build_batch([(None, b"v", [("headrace.tag", b"x")], 1)] * count)
        header = BatchHeader.parse(batch)
        data = records_of(header, batch)
        for wanted in ("a", "abcdefgh"):
            assert TagFilter.of(list(wanted)).select(header, data) == passes
