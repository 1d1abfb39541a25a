"""Rates measured as Kafka measures them, and the pauses that bring a client down to its quota.

A rate is kept in samples. A sample begins with the first value after the sample before is full, which takes
`window_ms`, and counts until all of it is older than all windows together. A client at its quota is never paused. A
client above its quota is paused for as long as the measured rate takes to fall to the quota, if nothing is added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

LONGEST_PAUSE_MS: Final = 2**31 - 1
"""The largest value of `throttle_time_ms` in the protocol, in milliseconds."""


class Windows(NamedTuple):
    """The time over which a rate is measured: `quota.window.num` times `quota.window.size.seconds`."""

    number: int = 11
    size_ms: int = 1000


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class SampledRate:
    """The sum of recorded values per second, over the last windows."""

    __slots__ = ("_latest_ms", "_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque()
        self._latest_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add a value. A negative value takes back."""
        now_ms = self._forward(now_ms)
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self._windows.size_ms:
            samples.append(_Sample(now_ms))
            if len(samples) > self._windows.number + 1:  # the sample began before the windows did
                samples.popleft()
        samples[-1].value += value
        samples[-1].last_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        """Return the rate per second."""
        now_ms = self._forward(now_ms)
        self._purge(now_ms)
        total = sum(sample.value for sample in self._samples)
        return total * 1000 / self._measured_ms(now_ms) if total else 0.0

    def pause_ms(self, quota: float, now_ms: int) -> int:
        """Return how long the rate takes to fall to the quota, in milliseconds; 0 if it is not above it."""
        now_ms = self._forward(now_ms)
        rate = self.per_second(now_ms)
        if rate <= quota:
            return 0
        pause_ms = (rate - quota) / quota * self._measured_ms(now_ms)
        return int(min(pause_ms + 0.5, LONGEST_PAUSE_MS))

    def _forward(self, now_ms: int) -> int:
        # A clock that is set back must not make samples of the future.
        self._latest_ms = max(self._latest_ms, now_ms)
        return self._latest_ms

    def _purge(self, now_ms: int) -> None:
        horizon_ms = now_ms - self._windows.number * self._windows.size_ms
        while self._samples and self._samples[0].last_ms <= horizon_ms:
            self._samples.popleft()

    def _measured_ms(self, now_ms: int) -> int:
        """Return the time that the samples span, at least all windows but one: a start counts little."""
        number, size_ms = self._windows
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0
        missing = number - 1 - elapsed_ms // size_ms
        return max(elapsed_ms + max(0, missing) * size_ms, size_ms)


class TrackedRates(Generic[K]):
    """The rates of many clients. At the limit the rate that was unused for longest is forgotten."""

    __slots__ = ("_limit", "_make", "_rates")

    def __init__(self, make: Callable[[], SampledRate], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._rates: dict[K, SampledRate] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def of(self, key: K) -> SampledRate:
        """Return the rate of one client, which becomes the latest used one."""
        rate = self._rates.pop(key, None)
        if rate is None:
            rate = self._make()
            if len(self._rates) >= self._limit:
                del self._rates[next(iter(self._rates))]
        self._rates[key] = rate
        return rate

    def clear(self) -> None:
        """Forget all rates again."""
        self._rates.clear()
