"""Which decoder belongs to what was asked for, and how it takes a batch of values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.spark.decode.columns import Column

if TYPE_CHECKING:
    from headrace.spark.options.decode import DecodeOptions

MAX_REASON: Final = 500
"""Characters of what is wrong with a value."""
_CONFLUENT_BYTES: Final = 5


@dataclass(frozen=True)
class Codec:
    """A decoder: values one by one to objects, objects together to a column."""

    parse: Callable[[bytes], Any]
    """Returns what `column` takes, or raises whatever says why a value does not decode."""
    column: Column
    extremes: Callable[[bytes], Any] | None = None
    """Tried where `parse` raises: it is slower, and takes what is rarely there."""

    def decode(self, values: Sequence[bytes | None]) -> tuple[Any, dict[int, str]]:
        """Return the column of values, and what is wrong with those that became null because they do not decode."""
        parse = self.parse
        errors: dict[int, str] = {}
        try:
            parsed = [None if value is None else parse(value) for value in values]
        except Exception:  # noqa: BLE001 - whatever a decoder says of bytes from anywhere
            parsed = []
            for row, value in enumerate(values):
                try:
                    parsed.append(None if value is None else self._parse_again(value))
                except Exception as error:  # noqa: BLE001 - whatever a decoder says of bytes from anywhere
                    parsed.append(None)
                    errors[row] = reason(error)
        try:
            return self.column.build(parsed), errors
        except Exception:  # noqa: BLE001 - of numbers that Arrow cannot hold, for example
            self._find(parsed, 0, len(parsed), errors)
        for row in errors:
            parsed[row] = None
        return self.column.build(parsed), errors

    def _parse_again(self, value: bytes) -> Any:
        """Return what any of the decoders makes of a value, or raise what the first one says."""
        try:
            return self.parse(value)
        except Exception:
            if self.extremes is not None:
                with contextlib.suppress(Exception):
                    return self.extremes(value)
            raise

    def _find(self, parsed: Sequence[Any], start: int, end: int, errors: dict[int, str]) -> None:
        """Find the values that no column can hold, by halves: few are wrong."""
        try:
            self.column.build(parsed[start:end])
        except Exception as error:  # noqa: BLE001 - of numbers that Arrow cannot hold, for example
            if end - start == 1:
                errors[start] = reason(error)
                return
            middle = (start + end) // 2
            self._find(parsed, start, middle, errors)
            self._find(parsed, middle, end, errors)


def reason(error: Exception) -> str:
    """Return what is wrong in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, LookupError | TypeError):  # their texts alone say little
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."


@lru_cache(maxsize=32)
def codec_of(options: DecodeOptions) -> Codec:
    """Return the decoder; a process keeps it.

    Raises:
        ConfigError: The schema cannot be used, or a library is not installed.
    """
    if options.format == "json":
        from headrace.spark.decode.json_values import json_codec

        codec = json_codec(options.schema)
    elif options.format == "avro":
        from headrace.spark.decode.avro_values import avro_codec

        codec = avro_codec(options.schema)
    else:
        from headrace.spark.decode.protobuf_values import protobuf_codec

        codec = protobuf_codec(options.schema)
    _check_type(codec.column.type)
    if options.framing == "plain":
        return codec
    if options.format == "json":
        raise ConfigError("option framing is for avro and protobuf, not for json")
    parse, strip = codec.parse, _unframed(options)
    return Codec(lambda value: parse(strip(value)), codec.column)


def _check_type(kind: Any) -> None:
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise ConfigError("option schema must describe a record with at least one field")


def _unframed(options: DecodeOptions) -> Callable[[bytes], bytes]:
    """Return what takes Confluent's prefix away: a zero byte, and the schema's id in four.

    Of Protobuf it also says which of a file's messages this is.
    """
    wanted = options.framing.partition(":")[2]
    schema_id = int(wanted).to_bytes(4, "big") if wanted else None
    after = _after_indexes if options.format == "protobuf" else _all

    def strip(value: bytes) -> bytes:
        if len(value) < _CONFLUENT_BYTES or value[0]:
            raise ValueError("it does not begin with a zero byte and a schema's id")
        if schema_id is not None and value[1:_CONFLUENT_BYTES] != schema_id:
            found = int.from_bytes(value[1:_CONFLUENT_BYTES], "big")
            raise ValueError(f"it was written with schema {found}, not {wanted}")
        return after(value[_CONFLUENT_BYTES:])

    return strip


def _all(value: bytes) -> bytes:
    return value


def _after_indexes(value: bytes) -> bytes:
    """Pass over the place of a message in its file: a count and as many numbers, zigzag varints; 0 is the first."""
    position, left = 0, 1
    counting = True
    while left:
        number = shift = 0
        while True:
            byte = value[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        left -= 1
        if counting:
            left, counting = number >> 1, False
    return value[position:]
