"""Protobuf values as columns: every type by its descriptor, from a file or a module."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from headrace.errors import ConfigError
from headrace.spark.decode.formats import codec_of
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.decode.protobuf_values import inline_schema

PLAIN = {
    "double": (1, 0.5),
    "float": (2, 0.5),
    "int64": (3, -(2**63)),
    "uint64": (4, 2**64 - 1),
    "int32": (5, -(2**31)),
    "fixed64": (6, 2**64 - 1),
    "fixed32": (7, 2**32 - 1),
    "bool": (8, True),
    "string": (9, "é"),
    "bytes": (12, b"\xff"),
    "uint32": (13, 2**32 - 1),
    "sint64": (18, -1),
}
FIELD = descriptor_pb2.FieldDescriptorProto


def file_set() -> Any:
    """Return the bytes that protoc would write for a file with a message of every type."""
    file = descriptor_pb2.FileDescriptorProto(
        name="all.proto",
        package="p",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="SOME", number=1)
    every = file.message_type.add(name="All")
    inner = every.nested_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=FIELD.TYPE_INT32, label=1)
    entry = every.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_INT64, label=1)
    for name, (number, _) in PLAIN.items():
        every.field.add(name=name, number=number, type=number, label=1)
    every.field.add(name="kind", number=30, type=FIELD.TYPE_ENUM, type_name=".p.Kind", label=1)
    every.field.add(
        name="inner", number=31, type=FIELD.TYPE_MESSAGE, type_name=".p.All.Inner", label=1
    )
    every.field.add(
        name="list", number=32, type=FIELD.TYPE_MESSAGE, type_name=".p.All.Inner", label=3
    )
    every.field.add(
        name="counts", number=33, type=FIELD.TYPE_MESSAGE, type_name=".p.All.CountsEntry", label=3
    )
    every.field.add(
        name="at",
        number=34,
        type=FIELD.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=1,
    )
    every.oneof_decl.add(name="_maybe")
    every.field.add(
        name="maybe", number=35, type=FIELD.TYPE_INT32, label=1, oneof_index=0, proto3_optional=True
    )
    itself = file.message_type.add(name="Itself")
    itself.field.add(name="more", number=1, type=FIELD.TYPE_MESSAGE, type_name=".p.Itself", label=1)
    file.message_type.add(name="Nothing")
    return descriptor_pb2.FileDescriptorSet(file=[file])


def message(name: str = "p.All") -> Any:
    pool = descriptor_pool.DescriptorPool()
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    for file in (timestamp, *file_set().file):
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "all.desc"
    path.write_bytes(file_set().SerializeToString())
    return f"{path}:p.All"


def decode(
    schema: str, *values: bytes | None, framing: str = "plain"
) -> tuple[list[Any], dict[int, str]]:
    options = DecodeOptions("protobuf", inline_schema(schema), framing=framing)
    column, errors = codec_of(options).decode(values)
    column.validate(full=True)
    return column.to_pylist(), errors


def test_every_type_decodes(schema: str) -> None:
    plain = {name: value for name, (_, value) in PLAIN.items()}
    value = message()(
        **plain, kind=1, inner={"x": 1}, list=[{"x": 2}, {}], counts={"a": 3}, maybe=0
    )
    value.at.FromDatetime(dt.datetime(2026, 11, 21, 12, 0, 0, 7, dt.UTC))

    (row, nothing, empty), errors = decode(schema, value.SerializeToString(), None, b"")

    assert not errors
    assert nothing is None
    assert row == {
        **plain,
        "uint64": Decimal(2**64 - 1),
        "fixed64": Decimal(2**64 - 1),
        "kind": "SOME",
        "inner": {"x": 1},
        "list": [{"x": 2}, {"x": 0}],
        "counts": [("a", 3)],
        "at": dt.datetime(2026, 11, 21, 12, 0, 0, 7, dt.UTC),
        "maybe": 0,
    }
    assert (empty["int32"], empty["kind"], empty["list"]) == (0, "NONE", [])
    assert (empty["inner"], empty["at"], empty["maybe"]) == (None, None, None)


def test_one_wrong_value_is_found_among_good_ones(schema: str) -> None:
    good = message()(int32=1, kind=7).SerializeToString()
    late = message()(at={"seconds": 2**62}).SerializeToString()
    rows, errors = decode(schema, good, b"\x0a", good[:-1], late, good)
    assert [row and row["kind"] for row in rows] == ["7", None, None, None, "7"]
    assert list(errors) == [1, 2, 3]


def test_a_prefix_with_schema_id_and_message_indexes_is_removed(schema: str) -> None:
    good = message()(int32=1).SerializeToString()
    rows, errors = decode(
        schema,
        b"\x00\x00\x00\x00\x07\x00" + good,
        b"\x00\x00\x00\x00\x07\x04\x02\x80\x01" + good,
        b"\x00\x00\x00\x00\x07",
        b"\x00\x00\x00\x00\x07\x80",
        framing="confluent",
    )
    assert [row and row["int32"] for row in rows] == [1, 1, None, None]
    assert list(errors) == [2, 3]


def test_a_schema_can_be_a_generated_module() -> None:
    value = timestamp_pb2.Timestamp(seconds=1)
    rows, errors = decode("google.protobuf.type_pb2:EnumValue", b"\x0a\x01a\x10\x05")
    assert rows == [{"name": "a", "number": 5, "options": []}]
    assert not errors
    with pytest.raises(ConfigError, match="must describe a record"):
        decode("google.protobuf.timestamp_pb2:Timestamp", value.SerializeToString())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("p.All", "must be FILE:MESSAGE"),
        ("/nowhere/all.desc:p.All", "there is no file /nowhere/all.desc"),
        ("no.such.module:All", "neither a file nor a module"),
        ("google.protobuf.type_pb2:Absent", "has no message Absent"),
        ("FILE:p.Absent", "known are p.All, p.Itself, p.Nothing"),
        ("FILE:p.Itself", "p.Itself contains itself"),
        ("FILE:p.Nothing", "has no fields"),
    ],
)
def test_a_schema_without_message_is_refused(schema: str, given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        decode(given.replace("FILE", schema.partition(":")[0]))


def test_a_file_that_is_no_descriptor_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(b"\xff\xff")
    with pytest.raises(ConfigError, match="no descriptor set"):
        decode(f"{path}:p.All")


def test_a_file_whose_imports_are_missing_is_refused(tmp_path: Path) -> None:
    found = file_set()
    found.file[0].dependency.append("other.proto")
    path = tmp_path / "all.desc"
    path.write_bytes(found.SerializeToString())
    with pytest.raises(ConfigError, match=r"lacks other\.proto.*--include_imports"):
        decode(f"{path}:p.All")
