"""Serdes that need no schema: bytes, text, JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec


class BytesSerde:
    """The serde of bytes. Text is written in UTF-8."""

    name: Final = "bytes"

    def serialize(self, value: Any) -> bytes:
        """Return bytes as they are, and text in UTF-8; other types are refused."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise TypeError(f"bytes or text are wanted, not {type(value).__name__}")

    def deserialize(self, data: bytes) -> bytes:
        """Return the bytes as they are."""
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
    """Refuse bytes where JSON is made of values: msgspec would write them as text in base64.

    Raises:
        TypeError: The value is bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"a value for JSON is wanted, not {type(value).__name__}: give the value itself, or write bytes as they "
            "are with a producer that has serde='bytes' (for keys key_serde='bytes')"
        )


class JsonSerde:
    """JSON of whatever msgspec can write: dicts, lists, text, numbers, dates, dataclasses; read as plain values."""

    name: Final = "json"

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder().decode

    def serialize(self, value: Any) -> bytes:
        """Return the value as JSON; bytes are refused, because they may be JSON already."""
        refuse_bytes(value)
        return self._encode(value)

    def deserialize(self, data: bytes) -> Any:
        """Return the value that the JSON describes."""
        return self._decode(data)
