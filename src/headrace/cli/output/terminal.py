"""The terminal: no text from a record, a broker or another program can send it control characters.

Commands escape such text with `printable`, so that it stays in its line. `shield` is the second protection: it escapes
control characters in all text that goes to a terminal, tracebacks and log lines included. Output to a pipe or a file
passes unchanged. Commands draw on the terminal through `unshielded`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

from headrace.types import Buffer

_STAYS: Final = frozenset("\n\t")


def printable(text: str) -> str:
    """Return text with control characters escaped, line feeds included."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def printable_bytes(data: bytes) -> bytes:
    """Return UTF-8 text with control characters escaped. Bytes that are not UTF-8 are escaped too."""
    return printable(data.decode("utf-8", "backslashreplace")).encode()


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class _Shield:
    """A text stream of a terminal that escapes control characters, except line feeds and tabs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream: Final = stream
        self.buffer: Any = _ShieldedBytes(self)

    def write(self, text: str) -> int:
        if not text.isprintable():
            text = "".join(
                each if each.isprintable() or each in _STAYS else _escaped(each) for each in text
            )
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _ShieldedBytes:
    """The `buffer` of a shielded stream, for programs that write bytes, such as handlers in `headrace run`."""

    def __init__(self, shield: _Shield) -> None:
        self._shield = shield

    def write(self, data: Buffer) -> int:
        content = bytes(data)
        self._shield.write(content.decode("utf-8", "backslashreplace"))
        return len(content)

    def __getattr__(self, name: str) -> Any:
        if name == "raw":
            raise AttributeError(name)
        return getattr(self._shield.stream, name)


def shield() -> None:
    """Shield standard output and standard error, if they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Shield) and stream.isatty():
            setattr(sys, name, _Shield(stream))


def unshielded(stream: TextIO) -> TextIO:
    """Return the stream behind the shield, for control characters that commands write themselves."""
    return stream.stream if isinstance(stream, _Shield) else stream
