"""Java properties files, to the extent that Kafka's configuration files use the format.

Error messages have the number of a line, and never its text: the line may contain a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headrace.errors import ConfigError

_CONTINUED: Final = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_ENTRY: Final = re.compile(r"((?:\\.|[^\s=:\\])+)\s*[=:]\s*(.*)")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str, where: str) -> dict[str, str]:
    """Parse the text of a properties file. Spaces around a value are not part of it.

    Args:
        text: The content of the file.
        where: The name of the file, for error messages.

    Raises:
        ConfigError: A line is not KEY=VALUE.
    """
    settings: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise ConfigError(f"{where}, line {number}: expected key=value")
        settings[_unescaped(match[1])] = _unescaped(match[2])
    return settings


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its continuation lines and the number of its first line, without comments."""
    begun, pending = 0, ""
    # Only these characters end a line. str.splitlines knows more, which may be part of a password.
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = raw.strip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        begun = begun if pending else number
        if _CONTINUED.search(line):
            pending += line[:-1]
            continue
        yield begun, pending + line
        pending = ""
    if pending:
        yield begun, pending


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    meant = _ESCAPE.sub(_meant, text)
    # A character beyond 16 bits is written as two escapes.
    return meant.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _meant(match: re.Match[str]) -> str:
    escaped = match[1]
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _LETTERS.get(escaped, escaped)
