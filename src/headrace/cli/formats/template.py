r"""The template language of `produce` and `consume`: rpk's percent tokens, read into a list of pieces.

    %t topic      %p partition  %o offset     %d timestamp (ms)    %e leader epoch
    %k key        %v value      %h{...} headers, formatted by the template between the braces
    %K %V sizes of key and value in bytes     %H number of headers %i number of the record, from 1
    %% %{ %} themselves         %n newline    \n \r \t \0 \\ \xNN

kcat's `%s` and `%S` mean `%v` and `%V`, and its `%T` means `%d` (rpk's `%T`, the length of the topic, is left out).
Modifiers stand in braces: `%v{hex}`, `%k{base64}`, `%v{json}`; numbers take `{hex}`, `{hex64}` ... `{hex4}`,
`{big64}` ... `{big16}`, `{little64}` ... `{little16}`, `{byte}`; `%d` also `{iso}` and `{strftime[...]}` (UTC).

The same template writes records (`headrace.cli.formats.writer`) and reads them (`headrace.cli.formats.reader`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

TEXT_MODIFIERS: Final = frozenset({"hex", "base64", "json"})
NUMBER_WIDTHS: Final = {
    "big64": 8,
    "big32": 4,
    "big16": 2,
    "big8": 1,
    "little64": 8,
    "little32": 4,
    "little16": 2,
    "little8": 1,
    "byte": 1,
}
"""Modifiers of binary numbers, with their sizes in bytes."""
HEX_DIGITS: Final = {"hex64": 16, "hex32": 8, "hex16": 4, "hex8": 2, "hex4": 1}
"""Modifiers of hexadecimal numbers, with their numbers of digits."""
NUMBER_MODIFIERS: Final = frozenset({"ascii", "hex", *NUMBER_WIDTHS, *HEX_DIGITS})


class TemplateError(ValueError):
    """A template is malformed."""


class Token(Enum):
    """The meaning of a percent token."""

    TOPIC = "t"
    KEY = "k"
    VALUE = "v"
    PARTITION = "p"
    OFFSET = "o"
    TIMESTAMP = "d"
    LEADER_EPOCH = "e"
    KEY_SIZE = "K"
    VALUE_SIZE = "V"
    HEADERS_COUNT = "H"
    NUMBER = "i"
    HEADERS = "h"


TEXT_TOKENS: Final = frozenset({Token.TOPIC, Token.KEY, Token.VALUE})
_ALIASES: Final = {"s": Token.VALUE, "S": Token.VALUE_SIZE, "T": Token.TIMESTAMP}
_LITERALS: Final = {"%": b"%", "{": b"{", "}": b"}", "n": b"\n"}
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_IN_HEADERS: Final = frozenset({Token.KEY, Token.VALUE, Token.KEY_SIZE, Token.VALUE_SIZE})
_STRFTIME: Final = re.compile(r"strftime\[(.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a template: literal bytes, or a token with its modifier."""

    literal: bytes = b""
    token: Token | None = None
    modifier: str = ""
    inner: tuple[Piece, ...] = field(default=())
    """The template of one header, for `Token.HEADERS`."""


def parse_template(text: str) -> list[Piece]:
    """Read a template.

    Raises:
        TemplateError: The template is malformed; the message has the place.
    """
    pieces, position = _parse(text, 0, in_headers=False)
    assert position == len(text), "without an enclosing brace a template ends at its end"
    return pieces


def _parse(text: str, position: int, *, in_headers: bool) -> tuple[list[Piece], int]:
    pieces: list[Piece] = []
    literal = bytearray()

    def flush() -> None:
        if literal:
            pieces.append(Piece(bytes(literal)))
            literal.clear()

    while position < len(text):
        character = text[position]
        if character == "}" and in_headers:
            flush()
            return pieces, position + 1
        if character == "\\":
            escaped, position = _escape(text, position + 1)
            literal += escaped
        elif character == "%":
            name = text[position + 1 : position + 2]
            if name in _LITERALS:
                literal += _LITERALS[name]
                position += 2
                continue
            flush()
            piece, position = _token(text, position + 1, in_headers=in_headers)
            pieces.append(piece)
        else:
            literal += character.encode("utf-8", "surrogateescape")  # any byte of an argument
            position += 1
    if in_headers:
        raise TemplateError("%h{ has no closing brace")
    flush()
    return pieces, position


def _escape(text: str, position: int) -> tuple[bytes, int]:
    name = text[position : position + 1]
    if name == "x":
        digits = text[position + 1 : position + 3]
        if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
            raise TemplateError(f"\\x needs two hexadecimal digits, not {digits!r}")
        return bytes.fromhex(digits), position + 3
    if name not in _ESCAPES:
        raise TemplateError(f"unknown escape \\{name}; there are \\n \\r \\t \\0 \\\\ \\xNN")
    return _ESCAPES[name], position + 1


def _token(text: str, position: int, *, in_headers: bool) -> tuple[Piece, int]:
    name = text[position : position + 1]
    try:
        token = _ALIASES.get(name) or Token(name)
    except ValueError:
        known = " ".join(f"%{token.value}" for token in Token)
        raise TemplateError(
            f"unknown token %{name} at character {position}; there are {known}"
        ) from None
    if in_headers and token not in _IN_HEADERS:
        raise TemplateError(f"%{name} is not allowed inside %h{{...}}: use %k %v %K %V")
    position += 1
    if token is Token.HEADERS:
        return _headers(text, position)
    modifier = ""
    if text[position : position + 1] == "{":
        modifier, position = _modifier(text, position + 1)
    _check_modifier(name, token, modifier)
    return Piece(token=token, modifier=modifier), position


def _headers(text: str, position: int) -> tuple[Piece, int]:
    if text[position : position + 1] != "{":
        raise TemplateError("%h needs a template for each header in braces, as in %h{%k=%v }")
    inner, position = _parse(text, position + 1, in_headers=True)
    if not inner:
        raise TemplateError("the braces of %h{...} are empty")
    return Piece(token=Token.HEADERS, inner=tuple(inner)), position


def _modifier(text: str, position: int) -> tuple[str, int]:
    """Read up to the closing brace; brackets inside may contain braces."""
    bracket = text.startswith("strftime[", position)
    end = text.find("]}" if bracket else "}", position)
    if end < 0:
        raise TemplateError(f"the brace at character {position - 1} is not closed")
    end += bracket
    return text[position:end], end + 1


def _check_modifier(name: str, token: Token, modifier: str) -> None:
    if not modifier:
        return
    if token in TEXT_TOKENS:
        known = TEXT_MODIFIERS
    elif token is Token.TIMESTAMP:
        if modifier == "iso" or _STRFTIME.fullmatch(modifier):
            return
        known = NUMBER_MODIFIERS | {"iso", "strftime[...]"}
    else:
        known = NUMBER_MODIFIERS
    if modifier not in known:
        raise TemplateError(
            f"%{name} has no modifier {{{modifier}}}; it has {', '.join(sorted(known))}"
        )


def strftime_layout(modifier: str) -> str | None:
    """Return the layout of a `strftime[...]` modifier, None for any other."""
    match = _STRFTIME.fullmatch(modifier)
    return match[1] if match else None
