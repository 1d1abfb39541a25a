"""Markdown: tables, paragraphs, and values as readers know them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from headrace.config.options import INT_MAX, LONG_MAX

WIDTH: Final = 118
"""Longest line outside tables, in characters."""
_DURATIONS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_SIZES: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
_UNITS: Final = {
    "ms": "ms",
    "bytes": "bytes",
    "seconds": "s",
    "minutes": "min",
    "hours": "h",
    "s": "s",
}
"""The last word of a setting's name, and the unit of its value."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; columns that are empty in all rows are left out."""
    body = [list(map(cell, row)) for row in rows]
    used = [at for at in range(len(head)) if any(row[at] for row in body)]
    lines = [[head[at] for at in used], ["---"] * len(used)]
    lines += [[row[at] for at in used] for row in body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(text: str) -> str:
    """Return text as a cell of a table has it: on one line, a bar escaped."""
    return " ".join(text.split()).replace("\\|", "|").replace("|", "\\|")


def code(text: object) -> str:
    """Return text as code, or nothing for the empty text."""
    shown = str(text)
    return f"`{shown}`" if shown else ""


def prose(text: str) -> str:
    """Return a sentence of a docstring: what looks like a tag of HTML is shown, double backquotes are single."""
    outside = re.split(r"(`[^`]*`)", text.replace("``", "`"))
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace(">", "&gt;")
        for part in outside
    )


def paragraphs(text: str) -> str:
    """Return paragraphs wrapped to the width of pages; lines that begin with a dash, bar or digit stay."""
    done = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if re.match(r"\s*([-*|#]|\d+\.|```)", part):
            done.append(part)
        else:
            done.append(
                textwrap.fill(
                    " ".join(part.split()), WIDTH, break_long_words=False, break_on_hyphens=False
                )
            )
    return "\n\n".join(done) + "\n"


def unit_of(name: str) -> str:
    """Return the unit of a setting's value, as its name says it; "" if it says none."""
    return _UNITS.get(re.split(r"[._]", name)[-1], "")


def value_of(name: str, value: object) -> str:
    """Return a value as it is written in a file, and as people write it where that is shorter."""
    if isinstance(value, bool):
        return code(str(value).lower())
    if value is None or value == "":
        return ""
    if not isinstance(value, int) or abs(value) < 1000:
        return code(value)
    return f"{code(value)}{readable(name, value)}"


def readable(name: str, value: int) -> str:
    """Return a number once more in larger units, in parentheses; "" if there is no whole number of one."""
    if value == LONG_MAX:
        return " (no limit)"
    unit = unit_of(name)
    if unit == "bytes" or name.endswith(("size", "memory")):
        return next(
            (f" ({value // size} {word})" for word, size in _SIZES.items() if value % size == 0), ""
        )
    if unit == "ms":
        return next(
            (f" ({value // size}{word})" for word, size in _DURATIONS.items() if value % size == 0),
            "",
        )
    return ""


def bounds(minimum: float | None, maximum: float | None) -> str:
    """Return the range of a number; bounds that only say how many bits it has are left out."""
    if maximum in {INT_MAX, LONG_MAX}:
        maximum = None
    if minimum is not None and maximum is not None:
        return f"{minimum} to {maximum}" if minimum != maximum else code(minimum)
    if minimum is not None:
        return f"at least {minimum}"
    return "" if maximum is None else f"at most {maximum}"


def anchor(title: str) -> str:
    """Return the anchor that a heading gets."""
    kept = re.sub(r"[^\w\- ]", "", title.lower())
    return kept.replace(" ", "-")
