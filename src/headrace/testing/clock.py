"""A running clock that a test can move ahead."""

from __future__ import annotations

import time

from headrace.clock import SteadyClock


class LeapingClock(SteadyClock):
    """The clock of the process, which a test can move ahead.

    A broker with this clock can serve clients over TCP, which have clocks of their own. Moving the clock affects the
    timeouts and the retention of the broker only.
    """

    __slots__ = ("_leapt_ns",)

    def __init__(self) -> None:
        self._leapt_ns = 0
        super().__init__(
            lambda: time.time_ns() + self._leapt_ns, lambda: time.monotonic_ns() + self._leapt_ns
        )

    def advance_to(self, now_ms: int) -> None:
        """Move the clock to a time. An earlier time changes nothing."""
        self._leapt_ns += max(0, now_ms - self.now_ms()) * 1_000_000
