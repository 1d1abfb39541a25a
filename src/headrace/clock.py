"""The clock of a process: milliseconds since 1970 that never go back and never jump.

The broker uses one `now_ms` for two purposes: it stamps records and compares them with the retention time (wall time),
and it measures sessions and waits (monotonic time). With wall time only, every session would expire when an operator or
NTP sets the clock forward, and time would stand still when the clock is set back. Therefore this clock starts at wall
time, advances with the monotonic clock, and approaches wall time slowly: by at most one twentieth of the elapsed time.
Durations are exact within five percent while the clock approaches wall time, and exact otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
_SLEW_DIVISOR: Final = 20
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Return nanoseconds of a clock that never goes back and also advances while the machine is suspended.

    The monotonic clock of Linux stands still in this time. After a suspension, a laptop would count partitions and
    leases as its own that other members own meanwhile.
    """
    return time.clock_gettime_ns(_BOOT_CLOCK)


class SteadyClock:
    """Milliseconds since 1970, monotonic, slewed towards wall time by calls of `slew`."""

    __slots__ = ("_monotonic_ns", "_offset_ns", "_slewed_at_ns", "_wall_ns")

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._slewed_at_ns = monotonic_ns()
        self._offset_ns = wall_ns() - self._slewed_at_ns

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return (self._monotonic_ns() + self._offset_ns) // _NANOSECONDS_PER_MILLISECOND

    def slew(self) -> int:
        """Move the clock towards wall time. Callers call this about once a second.

        Returns:
            The remaining difference in milliseconds; positive if wall time is ahead.
        """
        monotonic_ns = self._monotonic_ns()
        bound = (monotonic_ns - self._slewed_at_ns) // _SLEW_DIVISOR
        self._slewed_at_ns = monotonic_ns
        error_ns = self._wall_ns() - monotonic_ns - self._offset_ns
        step_ns = max(-bound, min(bound, error_ns))
        self._offset_ns += step_ns
        return (error_ns - step_ns) // _NANOSECONDS_PER_MILLISECOND
