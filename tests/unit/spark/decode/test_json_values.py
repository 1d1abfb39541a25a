"""JSON values: every type, missing and additional fields, and values that do not fit."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import ConfigError
from headrace.spark.decode.formats import codec_of
from headrace.spark.decode.options import DecodeOptions


def decode(schema: str, *values: Any) -> tuple[list[Any], dict[int, str]]:
    encoded = [
        each if each is None or isinstance(each, bytes) else json.dumps(each).encode()
        for each in values
    ]
    column, errors = codec_of(DecodeOptions("json", schema)).decode(encoded)
    column.validate(full=True)
    return column.to_pylist(), errors


def test_every_type_decodes() -> None:
    schema = (
        "a tinyint, b smallint, c int, d bigint, e float, f double, g decimal(10,2), h string, i binary, j boolean, "
        "k date, l timestamp, m timestamp_ntz, n array<int>, o map<string,bigint>, p struct<x:int,y:array<string>>"
    )
    value = {
        "a": -128,
        "b": 32767,
        "c": -(2**31),
        "d": 2**63 - 1,
        "e": 0.5,
        "f": 3,
        "g": 12.345,
        "h": "é\u0000",
        "i": "AAE=",
        "j": True,
        "k": "2026-11-21",
        "l": "2026-11-21T12:00:00.5+02:00",
        "m": "2026-11-21 12:00:00",
        "n": [1, None],
        "o": {"k": 1, "l": None},
        "p": {"x": 1, "y": []},
    }

    rows, errors = decode(schema, value, {}, dict.fromkeys(value))

    assert not errors
    noon = dt.datetime.fromisoformat("2026-11-21T12:00")
    assert rows[0] == {
        **value,
        "g": Decimal("12.35"),
        "i": b"\x00\x01",
        "k": noon.date(),
        "l": dt.datetime(2026, 11, 21, 10, 0, 0, 500_000, dt.UTC),
        "m": noon,
        "o": [("k", 1), ("l", None)],
    }
    assert rows[1] == rows[2] == dict.fromkeys(value)


def test_fields_without_column_are_ignored() -> None:
    rows, errors = decode(
        "b int, `c d` struct<x:int>", {"a": [{}], "b": 1, "c d": {"y": 2, "x": 3}}
    )
    assert rows == [{"b": 1, "c d": {"x": 3}}]
    assert not errors


def test_null_and_a_missing_value_decode_to_null() -> None:
    assert decode("a int", None, b"null", b' {"a": 1}\n') == ([None, None, {"a": 1}], {})


def test_times_are_text_or_seconds() -> None:
    values = [1.5, "1970-01-01T00:00:02Z", -1, "1970-01-01 00:00:03", None]
    rows, errors = decode("t timestamp", *({"t": each} for each in values))
    seconds = [row["t"] and row["t"].timestamp() for row in rows]
    assert seconds == [1.5, 2, -1, 3, None]
    assert not errors


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("tinyint", "128"),
        ("smallint", "-32769"),
        ("int", "2147483648"),
        ("bigint", "9223372036854775808"),
        ("bigint", "1" + "0" * 5000),
        ("bigint", "1.5"),
        ("float", "1e39"),
        ("double", "1e400"),
        ("decimal(4,2)", "100"),
        ("decimal(4,2)", "1e1000000"),
        ("decimal(4,2)", '"NaN"'),
        ("string", "1"),
        ("string", '"\\ud800"'),
        ("string", '"\xff"'),
        ("binary", '"*"'),
        ("boolean", "1"),
        ("date", '"2026-02-30"'),
        ("timestamp", '"soon"'),
        ("timestamp", "1e300"),
        ("timestamp", "9223372036855"),
        ("timestamp_ntz", '"2026-11-21T12:00:00Z"'),
        ("array<int>", "{}"),
        ("map<string,int>", '{"a": "b"}'),
        ("struct<x:int>", "[]"),
    ],
)
def test_one_wrong_value_is_found_among_good_ones(kind: str, value: str) -> None:
    bad = b'{"a": %s}' % value.encode("latin-1")
    rows, errors = decode(f"a {kind}, n int", {"n": 1}, {"n": 2}, bad, {"n": 3}, None)
    assert [row and row["n"] for row in rows] == [1, 2, None, 3, None]
    assert rows[2] is None
    assert list(errors) == [2]
    assert errors[2]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"[]",
        b"1",
        b'{"n":1}{"n":2}',
        b'{"n":1},"m":{}',
        b'{"n":1}\n{"n":2}',
        b"\xef\xbb\xbf{}",
        b'{"m":' + b"[" * 5000,
        b'{"n":1',
    ],
)
def test_malformed_json_does_not_affect_other_values(bad: bytes) -> None:
    rows, errors = decode("n int", {"n": 1}, bad, b"}", {"n": 2})
    assert [row and row["n"] for row in rows] == [1, None, None, 2]
    assert list(errors) == [1, 2]


def test_an_error_names_the_field() -> None:
    _, errors = decode("p struct<x:array<int>>", {"p": {"x": [1, "2"]}})
    assert "`$.p.x[1]`" in errors[0]
    assert "int" in errors[0]


@pytest.mark.parametrize(
    "schema",
    [
        "a map<binary,int>",
        "a map<array<int>,int>",
        "a map<double,int>",
        '`"` int',
        "a int, b struct<>",
        "a array<struct<b: struct<>>>",
    ],
)
def test_schemas_that_json_cannot_have_are_refused(schema: str) -> None:
    with pytest.raises(ConfigError, match="option schema"):
        codec_of(DecodeOptions("json", schema))


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        ("date", '"+10000-01-01"', 2_932_897),
        ("date", '"0000-02-29"', -719_469),
        ("date", '"-0001-12-31"', -719_529),
        ("date", '"+5881580-07-11"', 2**31 - 1),
        ("date", '"-5877641-06-23"', -(2**31)),
        ("timestamp", '"+294247-01-10T04:00:54.775807Z"', 2**63 - 1),
        ("timestamp", '"-290308-12-21T19:59:05.224192Z"', -(2**63)),
        ("timestamp", '"+10000-01-01T01:00:00.5+01:00"', 253_402_300_800_500_000),
        ("timestamp_ntz", '"+10000-01-01T00:00:00"', 253_402_300_800_000_000),
        ("float", "3.4028235E38", 3.4028234663852886e38),
        ("float", '"Infinity"', float("inf")),
        ("double", '"-Infinity"', float("-inf")),
        ("double", "1.7976931348623157E308", 1.7976931348623157e308),
    ],
)
def test_the_extremes_of_types_decode_as_spark_writes_them(
    kind: str, text: str, number: float
) -> None:
    codec = codec_of(DecodeOptions("json", f"a {kind}, more array<{kind}>"))
    value = f'{{"a": {text}, "more": [{text}, null]}}'.encode()
    column, errors = codec.decode([value, b"{}"])
    assert not errors
    plain = (
        pa.int64()
        if "timestamp" in kind
        else pa.int32()
        if kind == "date"
        else codec.column.type[0].type
    )
    found = column.field("a").cast(plain).to_pylist()
    assert found == [number, None]
    assert column.field("more")[0].values.cast(plain).to_pylist() == [number, None]


def test_nan_and_infinity_are_strings() -> None:
    rows, errors = decode("f float, d double", {"f": "NaN", "d": "NaN"}, {"f": "nan"}, {"d": "inf"})
    assert (str(rows[0]["f"]), str(rows[0]["d"])) == ("nan", "nan")
    assert list(errors) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("date", '"+10000-02-30"'),
        ("date", '"+99999999-01-01"'),
        ("timestamp", '"+300000-01-01T00:00:00Z"'),
        ("timestamp", '"+10000-01-01T24:00:00Z"'),
        ("timestamp_ntz", '"+10000-01-01T00:00:00Z"'),
        ("float", "3.4028236E38"),
    ],
)
def test_values_outside_the_range_of_their_type_are_errors(kind: str, text: str) -> None:
    _, errors = codec_of(DecodeOptions("json", f"a {kind}")).decode([f'{{"a": {text}}}'.encode()])
    assert list(errors) == [0]


def test_keys_of_maps_may_be_numbers_and_dates() -> None:
    rows, errors = decode(
        "m map<int,string>, d map<date,int>", {"m": {"1": "a"}, "d": {"2026-01-01": 1}}
    )
    assert rows == [{"m": [(1, "a")], "d": [(dt.date(2026, 1, 1), 1)]}]
    assert not errors
