"""The statistics that the demo compares with the results of the pipeline, and the errors for differences."""

from __future__ import annotations

import pytest

from headrace.demo.flights import Flight, FlightEvent
from headrace.demo.pipeline import Run
from headrace.demo.report import Outcome, as_json, as_text
from headrace.demo.statistics import (
    HOUR_MS,
    WindowKey,
    WindowResult,
    WrongResultError,
    check,
    compute,
    worst_windows,
)
from headrace.demo.stream import Produced, Topics

DAY = 1_357_034_400_000


def event(carrier: str, minute: int, delay: int | None) -> FlightEvent:
    flight = Flight(carrier, 1, None, "EWR", "IAH", "", delay, delay is None)
    return FlightEvent(DAY + minute * 60_000, flight)


EVENTS = [
    event("UA", 0, 10),
    event("UA", 59, 20),
    event("UA", 59, None),
    event("UA", 60, -5),
    event("EV", 5, None),
]
RESULTS = {
    WindowKey("UA", DAY): WindowResult(3, 1, 15.0, 20, 0.5),
    WindowKey("UA", DAY + HOUR_MS): WindowResult(1, 0, -5.0, -5, 0.0),
    WindowKey("EV", DAY): WindowResult(1, 1, None, None, None),
}


def test_the_statistics_group_by_window_and_carrier() -> None:
    expected = compute(EVENTS)

    assert {key: tally.result() for key, tally in expected.windows.items()} == RESULTS
    assert expected.carriers["UA"].result() == WindowResult(4, 1, 25 / 3, 20, 1 / 3)
    check("the files", RESULTS, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {WindowKey("UA", DAY): WindowResult(2, 1, 15.0, 20, 0.5)},
            "1 of 3 windows in the files are wrong",
        ),
        ({WindowKey("UA", DAY): WindowResult(3, 1, 15.001, 20, 0.5)}, "found WindowResult"),
        ({WindowKey("EV", DAY): WindowResult(1, 1, 0.0, None, None)}, "expected WindowResult"),
        ({WindowKey("XX", DAY): WindowResult(1, 0, 0.0, 0, 0.0)}, "'XX'.*not expected"),
        ({WindowKey("EV", DAY): None}, "found None"),
    ],
)
def test_any_difference_fails_and_is_shown(change: dict, message: str) -> None:
    found = {key: result for key, result in {**RESULTS, **change}.items() if result is not None}

    with pytest.raises(WrongResultError, match=message):
        check("the files", found, compute(EVENTS))


def test_the_worst_hour_prefers_hours_with_some_traffic() -> None:
    quiet, busy = WindowKey("UA", DAY), WindowKey("UA", DAY + HOUR_MS)
    results = {quiet: WindowResult(1, 0, 500.0, 500, 1.0), busy: WindowResult(9, 0, 50.0, 99, 1.0)}

    assert worst_windows(results, ["UA"]) == {"UA": busy}
    assert worst_windows({quiet: results[quiet]}, ["UA"]) == {"UA": quiet}


def test_the_report_contains_the_results_and_the_output_path(tmp_path) -> None:
    outcome = Outcome(
        bootstrap="127.0.0.1:1",
        own_broker=True,
        output=tmp_path,
        topics=Topics.with_prefix("x-"),
        first_ms=DAY,
        last_ms=DAY + HOUR_MS,
        expected=compute(EVENTS),
        results=RESULTS,
        airlines={"UA": "United Air Lines Inc."},
        produced=Produced(5, 1000, 0.5),
        spark_start_seconds=3.0,
        runs=(Run(5, 2, 1.5), Run(4, 2, 1.0)),
        seconds=9.0,
    )

    text, found = as_text(outcome), as_json(outcome)

    for part in (
        "UA United Air Lines Inc.",
        "5 flights in",
        "10 records/s",
        "2 rows/s",
        str(tmp_path / "results"),
    ):
        assert part in text
    assert "x-flight-delays" in text
    assert (found["records"], found["windows"], found["pipeline"]["batches"]) == (5, 3, 4)
    assert [each["carrier"] for each in found["carriers"]] == ["UA", "EV"]
    assert found["carriers"][0]["late_share"] == pytest.approx(1 / 3)
