"""Serdes that need no schema: bytes, text, JSON."""

from __future__ import annotations

from typing import Any

import msgspec


class BytesSerde:
    """Bytes as they are."""

    def serialize(self, value: Any) -> bytes:
        """Return the bytes; text and numbers are not taken for them."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise TypeError(
            f"bytes are wanted, not {type(value).__name__}: choose a serde, for example serde='json'"
        )

    def deserialize(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data


class StringSerde:
    """Text in UTF-8."""

    def serialize(self, value: Any) -> bytes:
        """Return the text's bytes."""
        if not isinstance(value, str):
            raise TypeError(f"text is wanted, not {type(value).__name__}")
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        """Return the text."""
        return data.decode()


class JsonSerde:
    """JSON of whatever msgspec can write: dicts, lists, text, numbers, dates, dataclasses; read as plain values."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder().decode

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON."""
        return self._encode(value)

    def deserialize(self, data: bytes) -> Any:
        """Return the value that the JSON describes."""
        return self._decode(data)
