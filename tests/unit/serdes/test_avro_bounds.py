"""Costs of one Avro value: its depth, and the number of items that take no bytes."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from headrace.errors import ConfigError
from headrace.serdes.avro import AvroSerde
from headrace.serdes.avro_bounds import MAX_DEPTH, MAX_EMPTY_ITEMS, AvroBounds

CHAIN: dict[str, Any] = {
    "type": "record",
    "name": "Node",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "next", "type": ["null", "Node"]},
    ],
}
EMPTY = {"type": "record", "name": "Empty", "fields": []}
EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "float"},
        {"name": "large", "type": "double"},
        {"name": "text", "type": "string"},
        {"name": "data", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "Kind"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {"name": "parts", "type": {"type": "array", "items": ["null", "All", "Hash"]}},
    ],
}


def nested(depth: int) -> bytes:
    return b"\x02\x02" * depth + b"\x02\x00"


def claimed(count: int) -> bytes:
    """Return an array that announces a number of items, and ends after them."""
    number, encoded = count << 1, bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(encoded) + bytes([number, 0])


def everything() -> dict[str, Any]:
    value: dict[str, Any] = {
        "flag": True, "small": 1.5, "large": -2.5, "text": "\u00fc" * 200, "data": b"\x00\xff", "day": -5,
        "kind": "B", "other": "A", "hash": b"123", "counts": {"a": 1 << 62, "b": -(1 << 63)},
        "nothing": [None] * 3, "parts": [],
    }  # fmt: skip
    return {**value, "parts": [None, {**value, "text": ""}, b"abc"]}


def test_whole_avro_values_are_decoded_and_truncated_values_are_refused() -> None:
    serde = AvroSerde(EVERYTHING)
    data = serde.serialize(everything())
    assert AvroBounds(serde._schema)._needed
    assert serde.serialize(serde.deserialize(data)) == data
    for end in range(len(data)):
        with pytest.raises(ValueError, match="ends within the value"):
            serde.deserialize(data[:end])


def test_a_schema_without_anything_that_has_no_bound_costs_no_walk() -> None:
    kind = {"type": "enum", "name": "Kind", "symbols": ["A"]}
    fields = [
        {"name": "kind", "type": kind},
        {"name": "kinds", "type": {"type": "array", "items": "Kind"}},
        {"name": "empty", "type": EMPTY},
    ]
    serde = AvroSerde({"type": "record", "name": "Plain", "fields": fields})
    assert not AvroBounds(serde._schema)._needed


def test_a_value_that_nests_too_deep_is_an_error_and_ends_no_process() -> None:
    serde = AvroSerde(CHAIN)
    assert serde.deserialize(nested(MAX_DEPTH // 2 - 1))["id"] == 1
    for depth in (MAX_DEPTH, 10_000):  # from some ten thousand on the stack is used up
        with pytest.raises(ValueError, match=f"nests deeper than {MAX_DEPTH}"):
            serde.deserialize(nested(depth))


@pytest.mark.parametrize(
    "items",
    ["null", EMPTY, {"type": "fixed", "name": "F", "size": 0}],
    ids=["null", "record", "fixed"],
)
def test_items_that_take_no_bytes_are_counted(items: Any) -> None:
    serde = AvroSerde({"type": "array", "items": items})
    assert len(serde.deserialize(claimed(1_000))) == 1_000
    for count in (MAX_EMPTY_ITEMS + 1, 1 << 61):
        with pytest.raises(ValueError, match="empty items"):
            serde.deserialize(claimed(count))


def test_avro_counts_beyond_the_data_are_refused() -> None:
    serde = AvroSerde({"type": "array", "items": CHAIN})
    for data in (b"\xff" * 50, b"\x02\x02\x05", b"\x02" + b"\xff" * 9 + b"\x01"):
        with pytest.raises(ValueError):  # noqa: PT011 - which of the reasons it is does not matter
            serde.deserialize(data)


def test_marks_of_an_earlier_parse_are_not_believed() -> None:
    """fastavro checks no schema that says it was parsed, and takes the types from a list beside it."""
    plain = {key: value for key, value in CHAIN.items() if key != "namespace"}
    schema = {
        "__fastavro_parsed": True,
        "__named_schemas": {"Node": plain},
        "type": "array",
        "items": "Node",
    }
    with pytest.raises(ConfigError, match="Node"):
        AvroSerde(schema)
    with pytest.raises(ConfigError, match="Node"):
        AvroSerde({**EMPTY, "fields": [{"name": "all", "type": schema}]})


def test_a_schema_that_fastavro_has_parsed_is_taken_and_kept_without_its_marks() -> None:
    serde = AvroSerde(fastavro.parse_schema(CHAIN))
    assert serde.deserialize(nested(1))["id"] == 1
    assert "fastavro" not in json.dumps(serde.parameters)
