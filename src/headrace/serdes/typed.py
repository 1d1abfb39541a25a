"""Serdes made of a type: what is pydantic's by pydantic, structs, dataclasses and plain types by msgspec."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.errors import ConfigError
from headrace.serdes.plain import BytesSerde, StringSerde, refuse_bytes
from headrace.serdes.shape import has_constraints, members, needs_pydantic, unreadable

MAX_ERRORS: Final = 100
"""The largest number of errors in a message about one value; a record of a mebibyte can have hundreds of thousands."""


class MsgspecSerde:
    """JSON of one type that msgspec knows; what is read is checked against the type."""

    name: Final = "json"

    def __init__(self, kind: Any) -> None:
        """Prepare a serde.

        Args:
            kind: A `msgspec.Struct`, a dataclass, a TypedDict, a NamedTuple, or a type made of plain ones.

        Raises:
            ConfigError: msgspec cannot read JSON into the type, or into a part of it.
        """
        try:
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
            strange = unreadable(kind)
        except Exception as error:
            raise ConfigError(f"no serde can be made of {kind!r}: {error}") from error
        if strange:
            raise ConfigError(
                f"no serde can be made of {kind!r}: nothing says how {strange[0].__qualname__} is read from JSON. Use "
                "a dataclass, a msgspec.Struct or a pydantic model, or give an object with serialize and deserialize: "
                "serde=MySerde()"
            )
        self._encode = msgspec.json.Encoder().encode

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON; bytes are refused, because they may be JSON already."""
        refuse_bytes(value)
        return self._encode(value)

    def deserialize(self, data: bytes) -> Any:
        """Return the value, of the serde's type."""
        return self._decoder.decode(data)


class PydanticSerde:
    """JSON of a type that pydantic knows: a model, a union of models, a dataclass that has some."""

    name: Final = "json"

    def __init__(self, kind: Any) -> None:
        """Prepare a serde.

        Raises:
            ConfigError: pydantic is not installed, or has no schema for the type.
        """
        try:
            from pydantic import (  # noqa: PLC0415 - an extra, and slow to load
                TypeAdapter,
                ValidationError,
            )

            adapter: Any = TypeAdapter(kind)
        except Exception as error:
            raise ConfigError(f"no serde can be made of {kind!r}: {error}") from error
        self._read = adapter.validate_json
        self._refusal = ValidationError
        self._check = adapter.validate_python
        self._dump = adapter.dump_json

    def deserialize(self, data: bytes) -> Any:
        """Return the value, of the serde's type.

        Raises:
            ValueError: It is none. This is pydantic's ValidationError, unless that has more than `MAX_ERRORS` errors:
                its text tells of each, and takes as long to make as the value to read, each time.
        """
        try:
            return self._read(data)
        except self._refusal as error:
            count = error.error_count()
            if count <= MAX_ERRORS:
                raise
        raise ValueError(f"{count} validation errors, too many to tell of each")

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON; what is no model yet is checked first."""
        data: bytes = self._dump(self._check(value))
        return data


class BufferSerde:
    """Bytes as they are, as a bytearray or a memoryview."""

    name: Final = "bytes"

    def __init__(self, kind: type[bytearray | memoryview]) -> None:
        self.deserialize = kind
        self.serialize = bytes


_RAW: Final = (bytes, bytearray, memoryview)


def serde_of_type(kind: Any) -> Any:
    """Return the serde that reads and writes a type.

    Args:
        kind: bytes or str, which are the record's as they are; or what JSON is read into: a pydantic model, a
            dataclass, a msgspec.Struct, a TypedDict, a type made of them and of plain ones. Each may be `T | None`.

    Raises:
        ConfigError: There is none.
    """
    choices = members(kind)
    if any(each in _RAW for each in choices) or choices == [str]:
        return _plain_serde(kind, choices)
    return PydanticSerde(kind) if needs_pydantic(kind) else MsgspecSerde(kind)


def writer_of_type(kind: type[Any]) -> Any:
    """Return the serde that writes values of a type: more than can be read, as every subclass of a dict."""
    try:
        return serde_of_type(kind)
    except ConfigError:
        return MsgspecSerde(Any)


def _plain_serde(kind: Any, choices: list[Any]) -> Any:
    if len(choices) > 1:
        raise ConfigError(
            f"no serde can be made of {kind!r}: bytes are the record's own, and what else they could be is not said in "
            "them. Take bytes alone, and decode them in the program"
        )
    if has_constraints(kind):
        raise ConfigError(
            f"no serde can be made of {kind!r}: nothing checks the constraints of bytes and text. Leave them out, or "
            "give the value a model"
        )
    [choice] = choices
    if choice is str:
        return StringSerde()
    return BytesSerde() if choice is bytes else BufferSerde(choice)
