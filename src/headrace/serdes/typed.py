"""Serdes made of a type: pydantic's models by pydantic, structs, dataclasses and plain types by msgspec."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from headrace.errors import ConfigError
from headrace.serdes.plain import BytesSerde, StringSerde


class MsgspecSerde:
    """JSON of one type that msgspec knows; what is read is checked against the type."""

    def __init__(self, kind: Any) -> None:
        """Prepare a serde.

        Args:
            kind: A `msgspec.Struct`, a dataclass, a TypedDict, a NamedTuple, or a type made of plain ones.

        Raises:
            ConfigError: msgspec cannot read JSON into the type.
        """
        try:
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        except TypeError as error:
            raise ConfigError(f"no serde can be made of {kind!r}: {error}") from None
        self._encode = msgspec.json.Encoder().encode

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON."""
        return self._encode(value)

    def deserialize(self, data: bytes) -> Any:
        """Return the value, of the serde's type."""
        return self._decoder.decode(data)


class PydanticSerde:
    """JSON of one of pydantic's models."""

    def __init__(self, model: Any) -> None:
        """Prepare a serde of a model class."""
        self._model = model

    def serialize(self, value: Any) -> bytes:
        """Return the model as JSON; a dict is checked against the model first."""
        checked = value if isinstance(value, self._model) else self._model.model_validate(value)
        text: str = checked.model_dump_json()
        return text.encode()

    def deserialize(self, data: bytes) -> Any:
        """Return the model, validated."""
        return self._model.model_validate_json(data)


def serde_of_type(kind: Any) -> Any:
    """Return the serde that reads and writes a type.

    Args:
        kind: bytes, str, a pydantic model, or any type that msgspec reads from JSON.

    Raises:
        ConfigError: There is none.
    """
    if kind is bytes:
        return BytesSerde()
    if kind is str:
        return StringSerde()
    pydantic = sys.modules.get("pydantic")  # a model's module has imported it
    if pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return PydanticSerde(kind)
    return MsgspecSerde(kind)
