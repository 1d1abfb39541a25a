"""Time for an embedded broker: the process's, or one that a test moves by hand."""

from __future__ import annotations

from typing import Final, Protocol

START_MS: Final = 1_700_000_000_000
"""Where a clock moved by hand begins, unless it is told: some day in November 2023."""


class Clock(Protocol):
    """Milliseconds since 1970 that never go back."""

    def now_ms(self) -> int:
        """Return the time."""


class ManualClock:
    """A clock that stands still until it is moved.

    An embedded broker with such a clock moves it itself when all its clients wait, straight to the next moment at
    which anything happens: a test of a long poll, of a session time-out or of a pause between attempts takes no time.
    """

    __slots__ = ("_now_ms", "auto_advance")

    def __init__(self, now_ms: int = START_MS, *, auto_advance: bool = True) -> None:
        """Set the clock.

        Args:
            now_ms: Where it begins.
            auto_advance: Whether waiting moves it. If not, who waits does so until another thread moves it.
        """
        self._now_ms = now_ms
        self.auto_advance = auto_advance

    def now_ms(self) -> int:
        """Return the time."""
        return self._now_ms

    def advance_to(self, now_ms: int) -> None:
        """Move to a time; a time that has passed changes nothing."""
        self._now_ms = max(self._now_ms, now_ms)
