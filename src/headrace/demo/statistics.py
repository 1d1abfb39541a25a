"""The expected results, computed without Spark, and the comparison with the pipeline's results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.demo.flights import FlightEvent
from headrace.errors import HeadraceError

HOUR_MS: Final = 3_600_000
LATE_MINUTES: Final = 15
SHOWN_DIFFERENCES: Final = 5


class WrongResultError(HeadraceError):
    """The results of the pipeline differ from the expected results."""


class WindowKey(NamedTuple):
    """A carrier and the hour that begins at `start_ms`."""

    carrier: str
    start_ms: int


class WindowResult(NamedTuple):
    """The delays of one carrier in one hour; means, maximum and share are of the flights that left."""

    flights: int
    cancelled: int
    mean_delay_minutes: float | None
    max_delay_minutes: int | None
    late_share: float | None


Results = Mapping[WindowKey, WindowResult]


@dataclass
class Tally:
    """Counts flights, for a `WindowResult` or for the total of a carrier."""

    flights: int = 0
    cancelled: int = 0
    delay_minutes: int = 0
    late: int = 0
    max_delay_minutes: int | None = None

    def add(self, delay_minutes: int | None) -> None:
        """Count one flight. The delay None stands for a cancelled flight."""
        self.flights += 1
        if delay_minutes is None:
            self.cancelled += 1
            return
        self.delay_minutes += delay_minutes
        self.late += delay_minutes > LATE_MINUTES
        if self.max_delay_minutes is None or delay_minutes > self.max_delay_minutes:
            self.max_delay_minutes = delay_minutes

    def result(self) -> WindowResult:
        """Return the means and shares of the counted flights."""
        departed = self.flights - self.cancelled
        if departed == 0:
            return WindowResult(self.flights, self.cancelled, None, None, None)
        return WindowResult(
            self.flights,
            self.cancelled,
            self.delay_minutes / departed,
            self.max_delay_minutes,
            self.late / departed,
        )


@dataclass
class Expected:
    """Tallies by window and by carrier."""

    windows: dict[WindowKey, Tally] = field(default_factory=dict)
    carriers: dict[str, Tally] = field(default_factory=dict)


def compute(events: Iterable[FlightEvent]) -> Expected:
    """Compute the statistics of the events."""
    expected = Expected()
    for event in events:
        delay = event.flight.departure_delay_minutes
        carrier = event.flight.carrier
        key = WindowKey(carrier, event.timestamp_ms // HOUR_MS * HOUR_MS)
        expected.windows.setdefault(key, Tally()).add(delay)
        expected.carriers.setdefault(carrier, Tally()).add(delay)
    return expected


def check(name: str, results: Results, expected: Expected) -> None:
    """Compare every window.

    Raises:
        WrongResultError: A window is missing, too many, or has other numbers.
    """
    wrong = [
        f"{key}: expected {tally.result()}, found {results.get(key)}"
        for key, tally in expected.windows.items()
        if not _equal(tally.result(), results.get(key))
    ]
    wrong += [f"{key}: not expected" for key in results.keys() - expected.windows.keys()]
    if wrong:
        shown = "\n  ".join(wrong[:SHOWN_DIFFERENCES])
        raise WrongResultError(
            f"{len(wrong)} of {len(expected.windows)} windows in {name} are wrong, such as:\n  {shown}"
        )


def total_flights(results: Results) -> int:
    """Return how many flights the windows count."""
    return sum(result.flights for result in results.values())


def _equal(expected: WindowResult, found: WindowResult | None) -> bool:
    if found is None:
        return False
    return all(_same(mine, theirs) for mine, theirs in zip(expected, found, strict=True))


def _same(mine: float | None, theirs: float | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9)


def worst_windows(results: Results, carriers: Sequence[str]) -> dict[str, WindowKey]:
    """Return each carrier's hour with the highest mean delay, of hours with five flights or more if there are any."""
    worst: dict[str, WindowKey] = {}
    for carrier in carriers:
        mine = {key: result for key, result in results.items() if key.carrier == carrier}
        busy = {key: result for key, result in mine.items() if result.flights >= 5} or mine
        worst[carrier] = max(
            busy, key=lambda key: (busy[key].mean_delay_minutes or -math.inf, -key.start_ms)
        )
    return worst
