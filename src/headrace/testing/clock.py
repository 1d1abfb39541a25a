"""A clock that runs, and that a test can advance."""

from __future__ import annotations

import time

from headrace.clock import SteadyClock


class LeapingClock(SteadyClock):
    """The process's clock, until a test moves it ahead.

    A broker with this clock can serve clients over TCP, which keep their own time: what leaps is the broker's part in
    it, such as session time-outs and retention.
    """

    __slots__ = ("_leapt_ns",)

    def __init__(self) -> None:
        self._leapt_ns = 0
        super().__init__(
            lambda: time.time_ns() + self._leapt_ns, lambda: time.monotonic_ns() + self._leapt_ns
        )

    def advance_to(self, now_ms: int) -> None:
        """Move to a time; a time that has passed changes nothing."""
        self._leapt_ns += max(0, now_ms - self.now_ms()) * 1_000_000
