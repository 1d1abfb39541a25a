"""Avro values as columns: every type by its schema, plain and with Confluent's prefix."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace.errors import ConfigError
from headrace.spark.decode.ddl import TIMESTAMP, TIMESTAMP_NTZ
from headrace.spark.decode.formats import codec_of
from headrace.spark.decode.options import DecodeOptions

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
TYPES: list[
    tuple[Any, Any, Any, Any]
] = [  # Avro's type, Arrow's, what is written, what is read if that is different
    ("boolean", pa.bool_(), True, None),
    ("int", pa.int32(), -(2**31), None),
    ("long", pa.int64(), 2**63 - 1, None),
    ("float", pa.float32(), 0.5, None),
    ("double", pa.float64(), 0.1, None),
    ("string", pa.string(), "é", None),
    ("bytes", pa.binary(), b"\xff", None),
    ({"type": "fixed", "name": "f", "size": 2}, pa.binary(), b"ab", None),
    ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, pa.string(), "B", None),
    ({"type": "string", "logicalType": "uuid"}, pa.string(), "x", None),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        pa.decimal128(9, 2),
        Decimal("-12.30"),
        None,
    ),
    ({"type": "int", "logicalType": "date"}, pa.date32(), NOON.date(), None),
    ({"type": "int", "logicalType": "time-millis"}, pa.int32(), dt.time(0, 0, 1), 1000),
    ({"type": "long", "logicalType": "timestamp-millis"}, TIMESTAMP, NOON, None),
    ({"type": "long", "logicalType": "timestamp-micros"}, TIMESTAMP, NOON, None),
    (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        TIMESTAMP_NTZ,
        NOON.replace(tzinfo=None),
        None,
    ),
    (["null", "string"], pa.string(), None, None),
    (["string", "null"], pa.string(), "x", None),
    (["null", "int", "long"], pa.int64(), 2**40, None),
    (["float", "double"], pa.float64(), 0.5, None),
    (
        {"type": "array", "items": ["null", "int"]},
        pa.list_(pa.field("element", pa.int32())),
        [1, None],
        None,
    ),
    ({"type": "map", "values": "long"}, pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
]
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "r",
    "namespace": "n",
    "fields": [{"name": f"f{number}", "type": kind} for number, (kind, *_) in enumerate(TYPES)]
    + [
        {
            "name": "inner",
            "type": {"type": "record", "name": "i", "fields": [{"name": "x", "type": "int"}]},
        },
        {"name": "again", "type": ["null", "n.i"]},
        {"name": "third", "type": {"type": "array", "items": "i"}},
    ],
}
VALUE = {f"f{number}": value for number, (_, _, value, _) in enumerate(TYPES)} | {
    "inner": {"x": 1},
    "again": None,
    "third": [{"x": 2}],
}
SMALL = {"type": "record", "name": "s", "fields": [{"name": "a", "type": "string"}]}


def encode(schema: Any, value: Any) -> bytes:
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), value)
    return output.getvalue()


def decode(
    schema: Any, *values: bytes | None, framing: str = "plain"
) -> tuple[list[Any], dict[int, str]]:
    options = DecodeOptions("avro", json.dumps(schema), framing=framing)
    column, errors = codec_of(options).decode(values)
    column.validate(full=True)
    return column.to_pylist(), errors


def test_every_type_decodes() -> None:
    encoded = encode(SCHEMA, VALUE)
    rows, errors = decode(SCHEMA, encoded, None, encoded)

    read = {
        f"f{number}": value if read is None else read
        for number, (_, _, value, read) in enumerate(TYPES)
    }
    assert not errors
    assert rows == [VALUE | read, None, VALUE | read]
    kinds = list(codec_of(DecodeOptions("avro", json.dumps(SCHEMA))).column.type)
    for (_, kind, *_), field in zip(TYPES, kinds, strict=False):
        assert field.type == kind, field


def test_one_wrong_value_is_found_among_good_ones() -> None:
    good = encode(SMALL, {"a": "good"})
    rows, errors = decode(SMALL, good, good[:-1], good + b"x", b"", b"\x03ab", b"\x02\xff", good)
    assert rows == [{"a": "good"}, None, None, None, None, None, {"a": "good"}]
    assert list(errors) == [1, 2, 3, 4, 5]
    assert "ends within" in errors[1]
    assert "another schema" in errors[2]


def test_times_that_no_column_holds_are_errors_of_their_row() -> None:
    schema = {
        "type": "record",
        "name": "t",
        "fields": [{"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    rows, errors = decode(schema, encode(schema, {"t": 1}), encode(schema, {"t": 2**63 - 1}))
    assert rows == [{"t": dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC)}, None]
    assert list(errors) == [1]


@pytest.mark.parametrize(
    ("framing", "wrong"),
    [
        ("confluent", [b"\x00\x00\x00", b"\x01\x00\x00\x00\x07"]),
        ("confluent:7", [b"\x00\x00\x00\x00\x08"]),
    ],
)
def test_a_prefix_with_a_schema_id_is_removed(framing: str, wrong: list[bytes]) -> None:
    good = encode(SMALL, {"a": "x"})
    values = [
        b"\x00\x00\x00\x00\x07" + good,
        *(prefix + good for prefix in wrong if len(prefix) > 4),
    ]
    rows, errors = decode(SMALL, *values, b"\x00\x00", framing=framing)
    assert rows == [{"a": "x"}, None, None]
    assert list(errors) == [1, 2]


def field(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "no Avro schema"),
        ('"string"', "must describe a record"),
        ('{"type": "record", "name": "r", "fields": []}', "at least one field"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "union of int, string",
        ),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}',
            "r contains itself",
        ),
        ('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "null"}]}', "type null"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "s"}]}',
            "no Avro schema",
        ),
        (field({"type": "record", "name": "e", "fields": []}), "e has no fields"),
        # A value of a few bytes could hold millions of elements that take no byte.
        (
            field({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}),
            "e has no fields",
        ),
        (
            field({"type": "array", "items": {"type": "fixed", "name": "z", "size": 0}}),
            "a fixed of 0 bytes, z",
        ),
        (field({"type": "bytes", "logicalType": "decimal"}), "a decimal with precision None"),
        (
            field({"type": "bytes", "logicalType": "decimal", "precision": 0}),
            "a decimal with precision 0",
        ),
    ],
)
def test_schemas_that_columns_cannot_have_are_refused(schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        codec_of(DecodeOptions("avro", schema))
