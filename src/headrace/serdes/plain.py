"""Serdes that need no schema: bytes, text, JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec


class BytesSerde:
    """The serde of bytes. Text is written in UTF-8."""

    name: Final = "bytes"

    def serialize(self, value: Any) -> bytes:
        """Return bytes unchanged, and text in UTF-8. Refuse other types."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise TypeError(f"bytes or text are wanted, not {type(value).__name__}")

    def deserialize(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data


class StringSerde:
    """The serde of text in UTF-8."""

    name: Final = "str"

    def serialize(self, value: Any) -> bytes:
        """Return the text in UTF-8."""
        if not isinstance(value, str):
            raise TypeError(f"text is wanted, not {type(value).__name__}")
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        """Return the text of UTF-8 bytes."""
        return data.decode()


def refuse_bytes(value: object) -> None:
    """Refuse bytes as a value for JSON, because msgspec would write them as text in base64.

    Raises:
        TypeError: The value is bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"a value for JSON is wanted, not {type(value).__name__}: give the value itself, or write bytes as they "
            "are with a producer that has serde='bytes' (for keys key_serde='bytes')"
        )


class JsonSerde:
    """The serde of JSON for all types that msgspec can write. Values are read as dicts, lists, text and numbers."""

    name: Final = "json"

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder().decode

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON. Refuse bytes, because they may be JSON already."""
        refuse_bytes(value)
        return self._encode(value)

    def deserialize(self, data: bytes) -> Any:
        """Return the value that the JSON text represents."""
        return self._decode(data)
