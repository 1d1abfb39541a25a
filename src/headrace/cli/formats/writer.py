"""Writing records by a template."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from headrace.cli.formats.template import (
    HEX_DIGITS,
    NUMBER_WIDTHS,
    Piece,
    Token,
    strftime_layout,
)
from headrace.cli.output.terminal import printable_bytes
from headrace.clients.consumer.records import ConsumerRecord

Writer = Callable[[ConsumerRecord, int], bytes]
"""Formats a record, given its number counted from 1, as bytes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def compile_writer(pieces: Sequence[Piece], *, escaped: bool = False) -> Writer:
    """Return the function that writes one record by a template.

    Args:
        pieces: The template.
        escaped: Whether to escape control characters and bytes that are not text, for a terminal. The literals of the
            template are not escaped.
    """
    writers = [_writer(piece, escaped=escaped) for piece in pieces]

    def write(record: ConsumerRecord, number: int) -> bytes:
        return b"".join([writer(record, number) for writer in writers])

    return write


def _escaping(write: Writer) -> Writer:
    return lambda record, number: printable_bytes(write(record, number))


def _writer(piece: Piece, *, escaped: bool = False) -> Writer:
    token = piece.token
    if token is None:
        literal = piece.literal
        return lambda _record, _number: literal
    if token is Token.HEADERS:
        return _headers_writer(piece.inner, escaped=escaped)
    write = _value_writer(token, piece.modifier)
    return _escaping(write) if escaped else write


def _value_writer(token: Token, modifier: str) -> Writer:
    if token in _TEXTS:
        text, encode = _TEXTS[token], text_encoder(modifier)
        return lambda record, _number: encode(text(record))
    if token is Token.NUMBER:
        format_number = number_encoder(modifier)
        return lambda _record, number: format_number(number)
    number_of = _NUMBERS[token]
    encode_number = (
        timestamp_encoder(modifier) if token is Token.TIMESTAMP else number_encoder(modifier)
    )
    return lambda record, _number: encode_number(number_of(record))


def _headers_writer(inner: Sequence[Piece], *, escaped: bool) -> Writer:
    """Write each header like a record, with its name as key and its content as value."""
    write = compile_writer(inner, escaped=escaped)

    def write_all(record: ConsumerRecord, number: int) -> bytes:
        return b"".join(
            write(record._replace(key=name.encode("utf-8", "surrogateescape"), value=value), number)
            for name, value in record.headers
        )

    return write_all


_TEXTS: dict[Token, Callable[[ConsumerRecord], bytes]] = {
    Token.TOPIC: lambda record: record.topic.encode(),
    Token.KEY: lambda record: record.key or b"",
    Token.VALUE: lambda record: record.value or b"",
}
_NUMBERS: dict[Token, Callable[[ConsumerRecord], int]] = {
    Token.PARTITION: lambda record: record.partition,
    Token.OFFSET: lambda record: record.offset,
    Token.TIMESTAMP: lambda record: record.timestamp_ms,
    Token.LEADER_EPOCH: lambda record: record.leader_epoch,
    Token.KEY_SIZE: lambda record: len(record.key or b""),
    Token.VALUE_SIZE: lambda record: len(record.value or b""),
    Token.HEADERS_COUNT: lambda record: len(record.headers),
}


def text_encoder(modifier: str) -> Callable[[bytes], bytes]:
    """Return the function that writes bytes by a text modifier."""
    if modifier == "hex":
        return lambda data: data.hex().encode()
    if modifier == "base64":
        return base64.b64encode
    if modifier == "json":
        return _as_json
    return bytes


def _as_json(data: bytes) -> bytes:
    """Write JSON unchanged, and other bytes as a JSON string, or null."""
    if not data:
        return b"null"
    try:
        json.loads(data)
    except ValueError:
        return json.dumps(data.decode("utf-8", "backslashreplace")).encode()
    return data


def number_encoder(modifier: str) -> Callable[[int], bytes]:
    """Return the function that writes a number by a modifier; a number that is too large loses its high bytes."""
    width = NUMBER_WIDTHS.get(modifier)
    if width is not None:
        mask = (1 << 8 * width) - 1
        if modifier.startswith("little"):
            return lambda number: (number & mask).to_bytes(width, "little")
        return lambda number: (number & mask).to_bytes(width, "big")
    digits = HEX_DIGITS.get(modifier)
    if digits is not None:
        mask = (1 << 4 * digits) - 1
        return lambda number: f"{number & mask:0{digits}x}".encode()
    if modifier == "hex":
        return lambda number: f"{number & 0xFFFFFFFFFFFFFFFF if number < 0 else number:x}".encode()
    return lambda number: b"%d" % number


def timestamp_encoder(modifier: str) -> Callable[[int], bytes]:
    """Return the function that writes a timestamp in milliseconds by a modifier."""
    layout = strftime_layout(modifier)
    if layout is not None:
        return lambda timestamp_ms: as_time(timestamp_ms).strftime(layout).encode()
    if modifier == "iso":
        return lambda timestamp_ms: iso_time(timestamp_ms).encode()
    return number_encoder(modifier)


def as_time(timestamp_ms: int) -> datetime:
    """Return a timestamp as a UTC time, clamped to the years of Python's `datetime`."""
    highest = 253402300799999
    return _EPOCH + timedelta(milliseconds=min(max(timestamp_ms, 0), highest))


def iso_time(timestamp_ms: int) -> str:
    """Return a timestamp in the form 2013-01-01T05:15:00.000Z."""
    return as_time(timestamp_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
