"""Choose the decoder of a format: JSON, Avro or Protobuf, with or without Confluent's framing."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.spark.decode.codec import Codec
from headrace.spark.decode.options import DecodeOptions

_CONFLUENT_BYTES: Final = 5
"""Length of Confluent's prefix: a zero byte and the schema id in four bytes."""


@lru_cache(maxsize=32)
def codec_of(options: DecodeOptions) -> Codec:
    """Return the decoder for these options. The process caches decoders.

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
    """Return the function that checks and removes Confluent's prefix: a zero byte and the schema id in four bytes.

    For Protobuf the prefix also has the indexes of the message in its file.
    """
    wanted = options.framing.partition(":")[2]
    schema_id = int(wanted).to_bytes(4, "big") if wanted else None
    after = _after_indexes if options.format == "protobuf" else _all

    def strip(value: bytes) -> bytes:
        if len(value) < _CONFLUENT_BYTES or value[0]:
            raise ValueError("the value does not begin with a zero byte and a schema id")
        if schema_id is not None and value[1:_CONFLUENT_BYTES] != schema_id:
            found = int.from_bytes(value[1:_CONFLUENT_BYTES], "big")
            raise ValueError(f"the value was written with schema {found}, not {wanted}")
        return after(value[_CONFLUENT_BYTES:])

    return strip


def _all(value: bytes) -> bytes:
    return value


def _after_indexes(value: bytes) -> bytes:
    """Skip the indexes of a message in its file: zigzag varints, a count and that many numbers.

    A count of 0 stands for the file's first message.
    """
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
