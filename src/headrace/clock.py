"""The clock of a process: milliseconds since 1970 that never go back and never jump.

The broker takes a single `now_ms` for two purposes: it stamps records and compares them with retention (wall
time), and it measures sessions and waits (monotonic time). Plain wall time would expire every session when an
operator or NTP sets the clock forward, and would stop time when it is set back. So the clock starts at wall
time, advances with the monotonic clock, and is drawn towards wall time slowly: by at most one twentieth of the
time that has passed. Durations are therefore right within five per cent while it catches up, and exact otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
_SLEW_DIVISOR: Final = 20
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Return nanoseconds of a clock that never goes back, and goes on while the machine is suspended.

    Linux' monotonic clock stands still then. A laptop that wakes up would think for a while that partitions and leases
    are its own that belong to others by now.
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
        """Return the time."""
        return (self._monotonic_ns() + self._offset_ns) // _NANOSECONDS_PER_MILLISECOND

    def slew(self) -> int:
        """Step towards wall time; to be called about once a second.

        Returns:
            What is still missing, in milliseconds (positive when wall time is ahead).
        """
        monotonic_ns = self._monotonic_ns()
        bound = (monotonic_ns - self._slewed_at_ns) // _SLEW_DIVISOR
        self._slewed_at_ns = monotonic_ns
        error_ns = self._wall_ns() - monotonic_ns - self._offset_ns
        step_ns = max(-bound, min(bound, error_ns))
        self._offset_ns += step_ns
        return (error_ns - step_ns) // _NANOSECONDS_PER_MILLISECOND
