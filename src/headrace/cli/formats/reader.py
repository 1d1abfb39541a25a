"""Reading records by a template: the inverse of `headrace.cli.formats.writer`.

A text token ends before the literal that follows it, or has the size that an earlier size token gave. A number ends
after its last digit, or has the width of its modifier.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.cli.formats.template import (
    HEX_DIGITS,
    NUMBER_WIDTHS,
    TEXT_TOKENS,
    Piece,
    TemplateError,
    Token,
)

MAX_FIELD_BYTES: Final = 64 << 20
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
_ENCODED_SIZES: Final[dict[str, Callable[[int], int]]] = {
    "hex": lambda size: 2 * size,
    "base64": lambda size: 4 * ((size + 2) // 3),
}
"""The number of characters to which a number of bytes is encoded, by modifier."""
_SIZES: Final = {Token.KEY_SIZE: Token.KEY, Token.VALUE_SIZE: Token.VALUE}


class InputError(ValueError):
    """The input does not have the form of the template."""


@dataclass(slots=True)
class ScannedRecord:
    """The fields of one record in the input; None for fields that the template does not have."""

    topic: str | None = None
    key: bytes | None = None
    value: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


class Source:
    """A source of bytes with look-ahead, filled by a function."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        """Create an empty buffer in front of a function.

        Args:
            read: Returns available bytes; waits if there are none. b"" at the end of the input.
        """
        self._read = read
        self._buffer = b""
        self._position = 0
        self._ended = False
        self.consumed = 0
        """The number of bytes taken so far."""

    def fill(self, size: int) -> bool:
        """Read until `size` bytes can be taken; return false if the input ends before."""
        while len(self._buffer) - self._position < size:
            if self._ended:
                return False
            more = self._read()
            self._ended = not more
            self._buffer = self._buffer[self._position :] + more
            self._position = 0
        return True

    @property
    def at_end(self) -> bool:
        """Whether the input has ended and all bytes are taken."""
        return not self.fill(1)

    def peek(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end, without taking them."""
        self.fill(size)
        return self._buffer[self._position : self._position + size]

    def take(self, size: int) -> bytes:
        """Take `size` bytes.

        Raises:
            InputError: The input ends before.
        """
        if not self.fill(size):
            raise InputError(f"the input ends, but {size} more bytes are expected")
        data = self._buffer[self._position : self._position + size]
        self._position += size
        self.consumed += size
        return data

    def take_rest(self) -> bytes:
        """Take all bytes up to the end of the input."""
        size = 1 << 16
        while self.fill(size):
            size *= 2
            if size > MAX_FIELD_BYTES:
                raise InputError(f"a field exceeds {MAX_FIELD_BYTES} bytes")
        return self.take(len(self._buffer) - self._position)

    def take_until(self, delimiter: bytes) -> bytes:
        """Take the bytes before the delimiter; without a delimiter, all bytes up to the end of the input."""
        start = 0
        while True:
            found = self._buffer.find(delimiter, self._position + start)
            if found >= 0:
                return self.take(found - self._position)
            held = len(self._buffer) - self._position
            if held > MAX_FIELD_BYTES:
                raise InputError(f"no {delimiter!r} within {MAX_FIELD_BYTES} bytes")
            if not self.fill(held + 1):
                return self.take(held)
            start = max(0, held - len(delimiter) + 1)

    def take_while(self, allowed: frozenset[int], limit: int) -> bytes:
        """Take bytes as long as they are in `allowed`."""
        size = 0
        while size < limit and self.fill(size + 1):
            if self._buffer[self._position + size] not in allowed:
                break
            size += 1
        return self.take(size)


Reader = Callable[[Source], ScannedRecord]
Step = Callable[[Source, ScannedRecord, dict[Token, int]], None]


def compile_reader(pieces: Sequence[Piece]) -> Reader:
    """Return the function that reads one record by a template.

    Raises:
        TemplateError: The template cannot be read unambiguously.
    """
    if not any(piece.token is not None for piece in pieces):
        raise TemplateError("the template has no token to read")
    steps = _compile(pieces)

    def read(source: Source) -> ScannedRecord:
        record = ScannedRecord()
        sizes: dict[Token, int] = {}
        for step in steps:
            step(source, record, sizes)
        return record

    return read


def scan_records(read: Reader, source: Source) -> Iterator[ScannedRecord]:
    """Read records until the input ends.

    Raises:
        InputError: A record does not match the template; the message has the number of the record.
    """
    number = 0
    while not source.at_end:
        number += 1
        before = source.consumed
        try:
            record = read(source)
        except InputError as error:
            raise InputError(f"record {number}: {error}") from None
        if source.consumed == before:
            raise InputError(f"record {number}: the template reads nothing")
        yield record


def _compile(pieces: Sequence[Piece], *, nested: bool = False) -> list[Step]:
    steps: list[Step] = []
    sized: set[Token] = set()
    for index, piece in enumerate(pieces):
        following = pieces[index + 1] if index + 1 < len(pieces) else None
        last = following is None
        if piece.token is None:
            # The last line of a file may lack its newline.
            steps.append(_literal_step(piece.literal, optional_at_end=last and not nested))
        elif piece.token in TEXT_TOKENS:
            steps.append(_text_step(piece, following, sized=piece.token in sized, nested=nested))
        elif piece.token is Token.HEADERS:
            if Token.HEADERS not in sized:
                raise TemplateError(
                    "to read headers, the template must read their number first: %H %h{...}"
                )
            steps.append(_headers_step(piece.inner))
        else:
            steps.append(_number_step(piece))
            sized.add(_SIZES.get(piece.token, Token.NUMBER))
            if piece.token is Token.HEADERS_COUNT:
                sized.add(Token.HEADERS)
    return steps


def _literal_step(literal: bytes, *, optional_at_end: bool) -> Step:
    def step(source: Source, _record: ScannedRecord, _sizes: dict[Token, int]) -> None:
        found = source.peek(len(literal))
        if found == literal:
            source.take(len(literal))
        elif not (optional_at_end and found == b""):
            raise InputError(f"expected {literal!r}, found {found!r}")

    return step


def _taker(
    piece: Piece, following: Piece | None, *, sized: bool, nested: bool
) -> Callable[[Source, int], bytes]:
    """Return the function that takes a text field, given its size if one was read."""
    if piece.modifier == "json" and not sized:
        return lambda source, _size: take_json(source)
    if sized:
        width = _ENCODED_SIZES.get(piece.modifier, int)
        return lambda source, size: source.take(width(size))
    if following is not None and following.token is None:
        delimiter = following.literal
        return lambda source, _size: source.take_until(delimiter)
    if following is None and not nested:
        return lambda source, _size: source.take_rest()
    assert piece.token is not None, "literals have their own step"
    raise TemplateError(
        f"the template does not define the end of %{piece.token.value}: put text after it, or its size before it"
    )


def _text_step(piece: Piece, following: Piece | None, *, sized: bool, nested: bool) -> Step:
    token = piece.token
    assert token is not None, "literals have their own step"
    decode = _decoder(piece.modifier)
    take = _taker(piece, following, sized=sized, nested=nested)

    def step(source: Source, record: ScannedRecord, sizes: dict[Token, int]) -> None:
        data = decode(take(source, sizes.get(token, 0)))
        if token is Token.TOPIC:
            record.topic = data.decode("utf-8", "replace")
        elif token is Token.KEY:
            record.key = data
        else:
            record.value = data

    return step


def _number_step(piece: Piece) -> Step:
    token = piece.token
    assert token is not None, "literals have their own step"
    take = _number_reader(piece.modifier, f"%{token.value}")

    def step(source: Source, record: ScannedRecord, sizes: dict[Token, int]) -> None:
        number = take(source)
        if token is Token.PARTITION:
            record.partition = number
        elif token is Token.TIMESTAMP:
            record.timestamp_ms = number
        elif token in _SIZES:
            sizes[_SIZES[token]] = _checked_size(number)
        elif token is Token.HEADERS_COUNT:
            sizes[Token.HEADERS] = _checked_size(number)

    return step


def _checked_size(number: int) -> int:
    if not 0 <= number <= MAX_FIELD_BYTES:
        raise InputError(f"{number} is not a size")
    return number


def _headers_step(inner: Sequence[Piece]) -> Step:
    steps = _compile(inner, nested=True)

    def step(source: Source, record: ScannedRecord, sizes: dict[Token, int]) -> None:
        for _ in range(sizes.get(Token.HEADERS, 0)):
            header = ScannedRecord()
            inner_sizes: dict[Token, int] = {}
            for inner_step in steps:
                inner_step(source, header, inner_sizes)
            name = (header.key or b"").decode("utf-8", "surrogateescape")
            record.headers.append((name, header.value))

    return step


def _number_reader(modifier: str, name: str) -> Callable[[Source], int]:
    width = NUMBER_WIDTHS.get(modifier)
    if width is not None:
        order: Final = "little" if modifier.startswith("little") else "big"
        signed = width == 8
        if order == "little":
            return lambda source: int.from_bytes(source.take(width), "little", signed=signed)
        return lambda source: int.from_bytes(source.take(width), "big", signed=signed)
    if modifier in {"", "ascii"}:
        return lambda source: _decimal(source, name)
    if modifier == "hex":
        return lambda source: _hexadecimal(source.take_while(_HEX, 16), name)
    if modifier in HEX_DIGITS:
        digits = HEX_DIGITS[modifier]
        return lambda source: _hexadecimal(source.take(digits), name)
    raise TemplateError(f"{name}{{{modifier}}} can be written but not read")


def _decimal(source: Source, name: str) -> int:
    sign = source.take(1) if source.peek(1) == b"-" else b""
    digits = source.take_while(frozenset(b"0123456789"), 19)
    if not digits:
        raise InputError(f"expected a number ({name}), found {source.peek(10)!r}")
    return int(sign + digits)


def _hexadecimal(digits: bytes, name: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        raise InputError(f"expected a hexadecimal number ({name}), found {digits!r}") from None


def _decoder(modifier: str) -> Callable[[bytes], bytes]:
    if modifier == "hex":
        return _from_hex
    if modifier == "base64":
        return _from_base64
    return bytes


def _from_hex(data: bytes) -> bytes:
    try:
        return bytes.fromhex(data.decode("ascii"))
    except ValueError:
        raise InputError(f"not hexadecimal: {data[:40]!r}") from None


def _from_base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise InputError(f"not base64: {data[:40]!r}") from None


def take_json(source: Source) -> bytes:
    """Take the text of one JSON value, without white space before it.

    Raises:
        InputError: The input has no valid JSON value here.
    """
    source.take_while(frozenset(b" \t\r\n"), MAX_FIELD_BYTES)
    first = source.peek(1)
    if first in {b"{", b"["}:
        data = _bracketed(source)
    elif first == b'"':
        data = _string(source)
    else:
        data = source.take_while(frozenset(b"+-.0123456789abcdefghijklmnopqrstuvwxyzE"), 64)
    try:
        json.loads(data)
    except ValueError as error:
        raise InputError(f"not JSON: {data[:40]!r} ({error})") from None
    return data


def _string(source: Source) -> bytes:
    taken = [source.take(1)]
    while True:
        part = source.take_until(b'"')
        taken += [part, source.take(1)]
        backslashes = len(part) - len(part.rstrip(b"\\"))
        if backslashes % 2 == 0:
            return b"".join(taken)


def _bracketed(source: Source) -> bytes:
    inside = frozenset(range(256)) - frozenset(b'"{}[]')
    taken = []
    depth = 0
    while True:
        taken.append(source.take_while(inside, MAX_FIELD_BYTES))
        if source.peek(1) == b'"':
            taken.append(_string(source))
            continue
        bracket = source.take(1)
        taken.append(bracket)
        depth += 1 if bracket in {b"{", b"["} else -1
        if depth == 0:
            return b"".join(taken)
