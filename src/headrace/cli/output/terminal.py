"""The terminal: control characters reach it from no text that a command prints, whoever wrote the text.

`printable` is what commands put strings of others through, so that each stays in its line. `shield` is the second door:
it escapes control characters in all text that goes to a terminal, tracebacks and lines of the log included. Output into
a pipe or a file passes unchanged. What the commands themselves draw goes through `unshielded`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

from headrace.types import Buffer

_STAYS: Final = frozenset("\n\t")


def printable(text: str) -> str:
    """Return text with control characters escaped, line feeds too: it neither drives a terminal nor begins a line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def printable_bytes(data: bytes) -> bytes:
    """Return the same for text in UTF-8; other bytes are escaped."""
    return printable(data.decode("utf-8", "backslashreplace")).encode()


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class _Shield:
    """A terminal's text stream that escapes control characters, but for ends of lines and tabs."""

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
    """The `buffer` of such a stream, for programs that write bytes: handlers of `headrace run`, say."""

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
    """Put the shield before standard output and standard error, where they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Shield) and stream.isatty():
            setattr(sys, name, _Shield(stream))


def unshielded(stream: TextIO) -> TextIO:
    """Return the stream itself, for control characters of the commands' own."""
    return stream.stream if isinstance(stream, _Shield) else stream
