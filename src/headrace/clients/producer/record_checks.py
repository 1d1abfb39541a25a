"""Checks of the arguments of `send`, and the serialization of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.clients.arguments import shown
from headrace.clients.producer.delivery import check_callback
from headrace.errors import ConfigError, MessageTooLargeError, SerializationError
from headrace.records.decoding import MAX_HEADERS
from headrace.serdes.plain import BytesSerde


def check_record(headers: object, timestamp_ms: object, on_delivery: object = None) -> None:
    """Check the arguments of a record: after it has failed, or before its topic is looked up.

    Raises:
        ConfigError: An argument has the wrong type or range.
        MessageTooLargeError: The record has more than `MAX_HEADERS` headers.
    """
    check_callback(on_delivery)
    if timestamp_ms is None:
        timestamp_ms = 0
    if not isinstance(timestamp_ms, int):
        raise ConfigError(f"timestamp_ms is a whole number of milliseconds, not {timestamp_ms!r}")
    if not -(1 << 63) <= timestamp_ms < 1 << 63:
        raise ConfigError(f"timestamp_ms is a number of 64 bits, not {timestamp_ms}")
    pairs = headers if isinstance(headers, list | tuple) else [headers]
    if len(pairs) > MAX_HEADERS:
        raise MessageTooLargeError(f"a record has at most {MAX_HEADERS} headers, not {len(pairs)}")
    for pair in pairs:
        if (
            not isinstance(pair, list | tuple)
            or len(pair) != 2
            or not isinstance(pair[0], str)
            or not isinstance(pair[1], bytes | bytearray | memoryview | None)
        ):
            raise ConfigError(f"headers are pairs of text and bytes (or None), not {pair!r}")


def check_partition_number(number: object) -> None:
    """Check that the partition in a record's arguments is a number or None.

    Raises:
        ConfigError: It is neither.
    """
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise ConfigError(f"a partition is a number, not {shown(number)}")


def serialized(serialize: Callable[[Any], Any], value: Any, topic: str, part: str) -> bytes:
    """Return the bytes of a key or a value, from its serde.

    Args:
        serialize: The `serialize` method of the serde.
        value: The key or the value.
        topic: The topic's name, for errors.
        part: "key" or "value", for errors.

    Raises:
        SerializationError: The serde raised an exception, or its result is not bytes.
    """
    try:
        data = serialize(value)
    except Exception as error:
        text = f"the {part} for topic {topic!r}: {error}"
        if getattr(serialize, "__func__", None) is BytesSerde.serialize:
            parameter = "serde" if part == "value" else "key_serde"
            text += f"; choose a serde, for example {parameter}='json'"
        raise SerializationError(text) from error
    if not isinstance(data, bytes):
        kind = type(data).__name__
        text = f"the {part} for topic {topic!r}: the serde returned {kind}, not bytes"
        raise SerializationError(text)
    return data
