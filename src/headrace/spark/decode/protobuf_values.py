"""Decode Protobuf by a descriptor that is part of the options. So tasks need neither its file nor its module."""

from __future__ import annotations

import base64
import binascii
import contextlib
import importlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.spark.decode.codec import Codec
from headrace.spark.decode.columns import Array, Column, Field, Leaf, Map, Struct
from headrace.spark.decode.ddl import TIMESTAMP

_INLINE: Final = "data:"
_HOW: Final = (
    "FILE:MESSAGE, a file that `protoc --include_imports --descriptor_set_out=FILE` wrote and the message's full name, "
    "or MODULE:MESSAGE, a module that protoc generated and a class in it"
)


def inline_schema(schema: str) -> str:
    """Return a schema that contains its descriptor, `data:BASE64:MESSAGE`, for a schema that names a file or a module.

    Raises:
        ConfigError: The file, module or message does not exist, or protobuf is not installed.
    """
    if schema.startswith(_INLINE):
        return schema
    where, colon, message = schema.rpartition(":")
    if not colon or not where or not message:
        raise ConfigError(f"option schema of format protobuf must be {_HOW}, not {schema!r}")
    path = Path(where)
    if path.is_file():
        encoded = path.read_bytes()
    elif where.replace(".", "").isidentifier() and "/" not in where:
        encoded, message = _of_module(where, message)
    else:
        raise ConfigError(f"option schema: there is no file {where}; it must be {_HOW}")
    return f"{_INLINE}{base64.b64encode(encoded).decode()}:{message}"


def _of_module(name: str, message: str) -> tuple[bytes, str]:
    pb2 = _library("descriptor_pb2")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"option schema: {name} is neither a file nor a module ({error}); it must be {_HOW}"
        ) from None
    found: Any = module
    for part in message.split("."):
        found = getattr(found, part, None)
    descriptor: Any = getattr(found, "DESCRIPTOR", None)
    if not hasattr(descriptor, "fields_by_name"):
        raise ConfigError(f"option schema: module {name} has no message {message}")
    files: dict[str, Any] = {}
    _add_file(descriptor.file, files)
    collected = pb2.FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(collected.file.add())
    return collected.SerializeToString(), descriptor.full_name


def _add_file(file: Any, files: dict[str, Any]) -> None:
    for each in file.dependencies:
        _add_file(each, files)
    files.setdefault(file.name, file)


def protobuf_codec(schema: str) -> Codec:
    """Create the decoder of Protobuf messages.

    Raises:
        ConfigError: The schema names no message, or the message has fields that columns cannot have, or protobuf is
            not installed.
    """
    encoded, _, name = inline_schema(schema).removeprefix(_INLINE).partition(":")
    factory = _library("message_factory")
    descriptor = _descriptor(encoded, name)
    parse = factory.GetMessageClass(descriptor).FromString
    column = _message(descriptor, ())

    def parse_whole(value: bytes) -> Any:
        message = parse(value)
        if not message.IsInitialized():
            raise ValueError(f"the message lacks {', '.join(message.FindInitializationErrors())}")
        return message

    return Codec(parse_whole, column)


def _library(module: str) -> Any:
    try:
        return importlib.import_module(f"google.protobuf.{module}")
    except ImportError:
        raise ConfigError(
            "option format protobuf needs protobuf: pip install 'headrace[protobuf]'"
        ) from None


def _descriptor(encoded: str, name: str) -> Any:
    pb2, pools = _library("descriptor_pb2"), _library("descriptor_pool")
    try:
        found = pb2.FileDescriptorSet.FromString(base64.b64decode(encoded, validate=True))
    except (binascii.Error, _library("message").DecodeError):
        raise ConfigError("option schema: the file is no descriptor set of protoc") from None
    pool, files = pools.DescriptorPool(), {each.name: each for each in found.file}
    added: set[str] = set()

    def add(file_name: str) -> None:
        if file_name in added:
            return
        added.add(file_name)
        file = files.get(file_name) or _well_known(pb2, file_name)
        for each in file.dependency:
            add(each)
        pool.Add(file)

    try:
        for file_name in files:
            add(file_name)
        return pool.FindMessageTypeByName(name)
    except KeyError:
        known = [
            f"{each.package}.{message.name}".lstrip(".")
            for each in found.file
            for message in each.message_type
        ]
        raise ConfigError(
            f"option schema: there is no message {name}; known are {', '.join(known) or 'none'}"
        ) from None
    except TypeError as error:
        raise ConfigError(f"option schema: the descriptor set cannot be used: {error}") from None


def _well_known(pb2: Any, file_name: str) -> Any:
    """Return a file that is part of protobuf itself. Descriptor sets without imports lack such files."""
    module = file_name.removesuffix(".proto").replace("/", ".") + "_pb2"
    file = pb2.FileDescriptorProto()
    if file_name.startswith("google/protobuf/"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module).DESCRIPTOR.CopyToProto(file)
            return file
    raise ConfigError(
        f"option schema: the descriptor set lacks {file_name}: write it with protoc --include_imports"
    )


def _message(descriptor: Any, inside: tuple[str, ...]) -> Column:
    if descriptor.full_name == "google.protobuf.Timestamp":
        return Leaf(TIMESTAMP, _timestamps)
    if descriptor.full_name in inside:
        raise ConfigError(
            f"option schema: {descriptor.full_name} contains itself, which a column cannot"
        )
    within = (*inside, descriptor.full_name)
    if not descriptor.fields:
        raise ConfigError(
            f"option schema: {descriptor.full_name} has no fields, and a column needs one"
        )
    return Struct([_field(each, within) for each in descriptor.fields])


def _field(field: Any, inside: tuple[str, ...]) -> Field:
    message = field.message_type
    get = attrgetter(field.name)
    if message is not None and message.GetOptions().map_entry:
        key, item = (_single(message.fields_by_name[name], inside) for name in ("key", "value"))
        return Field(field.name, lambda value: dict(get(value)), Map(key, item))
    column = _single(field, inside)
    if field.is_repeated:
        return Field(field.name, get, Array(column))
    return Field(field.name, _if_there(field.name, get) if field.has_presence else get, column)


def _if_there(name: str, get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: get(value) if value.HasField(name) else None


def _single(field: Any, inside: tuple[str, ...]) -> Column:
    if field.message_type is not None:
        return _message(field.message_type, inside)
    if field.enum_type is not None:
        return _enum(field.enum_type)
    return Leaf(_plain(field))


def _plain(field: Any) -> Any:
    kinds = {
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }
    return kinds[field.cpp_type]


def _enum(enum: Any) -> Column:
    names = {number: value.name for number, value in enum.values_by_number.items()}

    def named(values: Sequence[Any]) -> Any:
        return [None if value is None else names.get(value, str(value)) for value in values]

    return Leaf(pa.string(), named)


def _timestamps(values: Sequence[Any]) -> Any:
    return [
        None if value is None else value.seconds * 1_000_000 + value.nanos // 1000
        for value in values
    ]
