"""The clocks of an embedded broker: the interface, and a clock that a test moves."""

from __future__ import annotations

from typing import Final, Protocol

START_MS: Final = 1_700_000_000_000
"""The default start of a `ManualClock`, in milliseconds since 1970: 14 November 2023."""


class Clock(Protocol):
    """A clock that never goes back."""

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""


class ManualClock:
    """A clock that changes only when it is moved.

    When all clients of an embedded broker wait, the broker moves its `ManualClock` to the next deadline. So a test of a
    long poll, of a session timeout or of a pause between attempts takes no time.
    """

    __slots__ = ("_now_ms", "auto_advance")

    def __init__(self, now_ms: int = START_MS, *, auto_advance: bool = True) -> None:
        """Set the clock.

        Args:
            now_ms: The start time in milliseconds since 1970.
            auto_advance: Whether a wait moves the clock. If false, a call that waits continues when another thread
                moves the clock.
        """
        self._now_ms = now_ms
        self.auto_advance = auto_advance

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return self._now_ms

    def advance_to(self, now_ms: int) -> None:
        """Move the clock to a time. A time in the past changes nothing."""
        self._now_ms = max(self._now_ms, now_ms)
