"""Declarations of options. `docs/reference/spark-options.md` is generated from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Option:
    """The declaration of one option of a read or a write."""

    name: str
    meaning: str
    """The effect of the option, in Markdown."""
    only_for: Literal["", "batch", "stream"] = ""
    """The kind of read or write that has the option; empty for both kinds."""
    default: str = ""
    """The value that has the same effect as leaving the option out; empty if there is no such value."""
    stream_default: str = ""
    """The default in streams, if it differs from the default in batches."""


def option_names(options: Iterable[Option]) -> tuple[str, ...]:
    """Return the names of some options, in order."""
    return tuple(each.name for each in options)
