"""The states of a producer's transaction."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    """Where a producer is with its transaction."""

    NONE = auto()
    OPEN = auto()
    DELIVERING = auto()
    """Its last records are on their way before it is committed; no more are taken."""
    COMMITTING = auto()
    """The coordinator has been asked for it, and has perhaps done it."""
    DOOMED = auto()
    """It failed; what is left is to abort it."""
    ABORTING = auto()
    DEAD = auto()


WRITING: Final = frozenset({State.OPEN, State.DELIVERING})
