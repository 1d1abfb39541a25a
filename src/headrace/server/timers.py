"""One timer of the event loop for all deadlines of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_MAX_DELAY_MS: Final = 60_000


class BrokerTimer:
    """Calls `tick` when the broker's next deadline has come.

    The timer is set lazily. A timer that is set too early stays, expires without effect, and is set again. So a fetch
    that
    may wait half a second, but gets its response after a millisecond, costs no timer of its own.

    Args:
        loop: The running event loop.
        now_ms: Returns the time in the clock of the deadlines.
        next_deadline_ms: Returns the broker's next deadline, or None.
        tick: Called at the deadline.
    """

    __slots__ = ("_armed_ms", "_handle", "_loop", "_next_deadline_ms", "_now_ms", "_tick")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        next_deadline_ms: Callable[[], int | None],
        tick: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._next_deadline_ms = next_deadline_ms
        self._tick = tick
        self._armed_ms: int | None = None
        self._handle: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """Set the timer, unless it is set to the next deadline or an earlier time."""
        deadline_ms = self._next_deadline_ms()
        if deadline_ms is None or (self._armed_ms is not None and self._armed_ms <= deadline_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        # At least one millisecond: a deadline that `tick` does not clear must not block the event loop.
        delay_ms = max(1, min(deadline_ms - self._now_ms(), _MAX_DELAY_MS))
        self._armed_ms = deadline_ms
        self._handle = self._loop.call_later(delay_ms / 1000, self._fire)

    def _fire(self) -> None:
        self._armed_ms = self._handle = None
        deadline_ms = self._next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._now_ms():
            self._tick()
        self.arm()

    def clock_leapt(self) -> None:
        """Set the timer again: the clock has jumped ahead."""
        if self._handle is not None and self._armed_ms != -1:
            self._handle.cancel()
            self._handle = self._armed_ms = None
            self.arm()

    def hold_off(self, delay_ms: int) -> None:
        """Do not call `tick` for a while. It failed, and its deadline stays in the past."""
        self.cancel()
        self._handle = self._loop.call_later(delay_ms / 1000, self._fire)

    def cancel(self) -> None:
        """Stop the timer for good."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self._armed_ms = -1  # earlier than any deadline, so that `arm` does nothing
