"""The states of a producer's transaction."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    """The state of a producer's transaction."""

    NONE = auto()
    OPEN = auto()
    DELIVERING = auto()
    """The producer delivers the last records before the commit, and accepts no more."""
    COMMITTING = auto()
    """The coordinator was asked for the commit, and may have committed."""
    DOOMED = auto()
    """The transaction failed and must be aborted."""
    ABORTING = auto()
    DEAD = auto()


WRITING: Final = frozenset({State.OPEN, State.DELIVERING})
