"""Valid values between invalid ones are decoded in their positions, and every invalid value is reported."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.decode.formats import codec_of
from headrace.spark.decode.options import DecodeOptions
from tests.effort import examples

SCHEMA = "a int, b string, c array<double>, d map<string,smallint>, e struct<f:boolean,g:array<struct<h:bigint>>>"
NAMES = ("a", "b", "c", "d", "e")


def maybe(strategy: Any) -> Any:
    return st.none() | strategy


def integers(bits: int) -> Any:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "a": maybe(integers(32)),
        "b": maybe(TEXT),
        "c": maybe(st.lists(maybe(NUMBER), max_size=3)),
        "d": maybe(st.dictionaries(TEXT, maybe(integers(16)), max_size=3)),
        "e": maybe(
            st.fixed_dictionaries(
                {},
                optional={
                    "f": maybe(st.booleans()),
                    "g": maybe(
                        st.lists(
                            maybe(st.fixed_dictionaries({"h": maybe(integers(64))})), max_size=2
                        )
                    ),
                },
            )
        ),
        "more": st.recursive(
            TEXT | NUMBER, lambda inner: st.lists(inner, max_size=2), max_leaves=3
        ),
    },
)
BAD = st.one_of(
    st.binary(max_size=8).filter(lambda value: not _is_object_or_null(value)),
    OBJECT.map(lambda value: json.dumps(value).encode()[:-1]),
    OBJECT.map(lambda value: json.dumps(value).encode() + b"{}"),
    st.sampled_from(
        [
            b'{"a": 2147483648}',
            b'{"a": "1"}',
            b'{"b": 1}',
            b'{"c": [1e400]}',
            b'{"d": {"x": 32768}}',
            b'{"e": {"g": [{"h": 9223372036854775808}]}}',
            b'{"b": "\\ud800"}',
        ]
    ),
)
PARSED = (
    '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "long"]}, '
    '{"name": "b", "type": {"type": "array", "items": "string"}}]}'
)


def _is_object_or_null(value: bytes) -> bool:
    try:
        found = json.loads(value)
    except ValueError:
        return False
    return found is None or isinstance(found, dict)


def wanted(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object as a row: all columns, and maps as pairs."""
    row = {name: value.get(name) for name in NAMES}
    if row["d"] is not None:
        row["d"] = list(row["d"].items())
    if row["e"] is not None:
        row["e"] = {"f": row["e"].get("f"), "g": row["e"].get("g")}
    return row


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(OBJECT, st.none(), BAD), max_size=8))
def test_valid_json_values_are_decoded_beside_invalid_values(values: list[Any]) -> None:
    encoded = [json.dumps(each).encode() if isinstance(each, dict) else each for each in values]

    column, errors = codec_of(DecodeOptions("json", SCHEMA)).decode(encoded)

    column.validate(full=True)
    rows = column.to_pylist()
    assert rows == [wanted(each) if isinstance(each, dict) else None for each in values]
    assert sorted(errors) == [row for row, each in enumerate(values) if isinstance(each, bytes)]


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({"a": maybe(integers(64)), "b": st.lists(TEXT, max_size=2)})
        | st.binary(max_size=6),
        max_size=8,
    )
)
def test_random_bytes_between_avro_values_are_decoded_or_refused(values: list[Any]) -> None:
    schema = fastavro.parse_schema(json.loads(PARSED))

    def encode(value: Any) -> bytes:
        output = io.BytesIO()
        fastavro.schemaless_writer(output, schema, value)
        return output.getvalue()

    encoded = [encode(each) if isinstance(each, dict) else each for each in values]
    column, errors = codec_of(DecodeOptions("avro", PARSED)).decode(encoded)

    column.validate(full=True)
    for row, (value, found) in enumerate(zip(values, column.to_pylist(), strict=True)):
        if isinstance(value, dict):
            assert found == value
            assert row not in errors
        else:  # bytes may happen to be a value
            assert (found is None) == (row in errors)
