"""One defence in the source, and its removal."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """One defence and its removal."""

    area: str
    defence: str
    path: str
    """The file, below src/headrace."""
    old: str
    """The text, which the file has once."""
    new: str
    """The text that replaces `old`."""
    tests: tuple[str, ...]
    """Files, or tests; one of them has to fail."""
