"""Serdes for types: pydantic reads its own types, msgspec reads structs, dataclasses and plain types."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.errors import ConfigError
from headrace.serdes.plain import BytesSerde, StringSerde, refuse_bytes
from headrace.serdes.shape import has_constraints, members, needs_pydantic, unreadable

MAX_ERRORS: Final = 100
"""The largest number of errors in a message about one value. A record of 1 MiB can have hundreds of thousands."""


class MsgspecSerde:
    """JSON of one type that msgspec supports. Values that are read are checked against the type."""

    name: Final = "json"

    def __init__(self, kind: Any) -> None:
        """Prepare a serde.

        Args:
            kind: A `msgspec.Struct`, a dataclass, a TypedDict, a NamedTuple, or a type composed of plain ones.

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
                f"no serde can be made of {kind!r}: {strange[0].__qualname__} cannot be read from JSON. Use "
                "a dataclass, a msgspec.Struct or a pydantic model, or pass an object with serialize and deserialize: "
                "serde=MySerde()"
            )
        self._encode = msgspec.json.Encoder().encode

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON. Refuse bytes, because they may be JSON already."""
        refuse_bytes(value)
        return self._encode(value)

    def deserialize(self, data: bytes) -> Any:
        """Return the value, which has the serde's type."""
        return self._decoder.decode(data)


class PydanticSerde:
    """JSON of a type that pydantic supports: a model, a union of models, a dataclass with fields that are models."""

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
        """Return the value, which has the serde's type.

        Raises:
            ValueError: The JSON is not a value of the type. This is pydantic's ValidationError if it has at most
                `MAX_ERRORS` errors. With more, building its text would take as long as reading the value.
        """
        try:
            return self._read(data)
        except self._refusal as error:
            count = error.error_count()
            if count <= MAX_ERRORS:
                raise
        raise ValueError(f"{count} validation errors, too many to name each")

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON. A value that is not a model is validated first."""
        data: bytes = self._dump(self._check(value))
        return data


class BufferSerde:
    """Unchanged bytes as a bytearray or a memoryview."""

    name: Final = "bytes"

    def __init__(self, kind: type[bytearray | memoryview]) -> None:
        self.deserialize = kind
        self.serialize = bytes


_RAW: Final = (bytes, bytearray, memoryview)


def serde_of_type(kind: Any) -> Any:
    """Return the serde that reads and writes values of a type.

    Args:
        kind: bytes or str for the unchanged contents of a record; or a type for JSON: a pydantic model, a dataclass, a
            msgspec.Struct, a TypedDict, or a type composed of these and of plain types. Each may be `T | None`.

    Raises:
        ConfigError: No library supports the type.
    """
    choices = members(kind)
    if any(each in _RAW for each in choices) or choices == [str]:
        return _plain_serde(kind, choices)
    return PydanticSerde(kind) if needs_pydantic(kind) else MsgspecSerde(kind)


def writer_of_type(kind: type[Any]) -> Any:
    """Return the serde that writes values of a type. Some types, such as dict subclasses, cannot be read."""
    try:
        return serde_of_type(kind)
    except ConfigError:
        return MsgspecSerde(Any)


def _plain_serde(kind: Any, choices: list[Any]) -> Any:
    if len(choices) > 1:
        raise ConfigError(
            f"no serde can be made of {kind!r}: the bytes of a record do not show which type of the union they are. "
            "Use bytes alone, and decode them in the program"
        )
    if has_constraints(kind):
        raise ConfigError(
            f"no serde can be made of {kind!r}: constraints of bytes and text are not checked. Remove the constraints, "
            "or use a model for the value"
        )
    [choice] = choices
    if choice is str:
        return StringSerde()
    return BytesSerde() if choice is bytes else BufferSerde(choice)
