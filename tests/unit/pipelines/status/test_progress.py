"""The numbers of a batch in Spark's report, and the age of unread records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.pipelines.status.progress import STEPS, LagClock, read_progress


def report(**changes: Any) -> dict[str, Any]:
    return {
        "timestamp": "2026-01-01T00:00:10.000Z",
        "batchId": 3,
        "batchDuration": 500,
        "numInputRows": 30,
        "inputRowsPerSecond": 15.04,
        "processedRowsPerSecond": 60.0,
        "sources": [
            {
                "endOffset": '{"flights": {"0": 20, "1": 10}, "$headrace": {"flights": "an-id"}}',
                "latestOffset": '{"flights": {"0": 25, "1": 10, "2": 4}}',
            }
        ],
        "stateOperators": [
            {"numRowsTotal": 7, "memoryUsedBytes": 900},
            {"numRowsTotal": 1, "memoryUsedBytes": 100},
        ],
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
        **changes,
    }


def test_a_report_becomes_numbers() -> None:
    progress = read_progress(report(), LagClock())

    assert (progress.batch_id, progress.input_rows, progress.duration_ms) == (3, 30, 500)
    assert (progress.input_rate, progress.processed_rate) == (15.0, 60.0)
    assert (progress.state_rows, progress.state_bytes) == (8, 1000)
    assert progress.lag_records == 5 + 4
    assert progress.at_ms == 1767225610000
    assert progress.watermark == "2026-01-01T00:00:00.000Z"


def test_a_source_that_is_no_topic_has_no_lag() -> None:
    progress = read_progress(
        report(sources=[{"endOffset": 4, "latestOffset": None}, {"endOffset": '{"logOffset": 1}'}]),
        LagClock(),
    )

    assert (progress.lag_records, progress.lag_seconds) == (None, None)


def test_rates_that_are_not_numbers_are_zero() -> None:
    progress = read_progress(
        report(inputRowsPerSecond=json.loads("NaN"), processedRowsPerSecond=json.loads("Infinity")),
        LagClock(),
    )

    assert (progress.input_rate, progress.processed_rate) == (0.0, 0.0)
    assert read_progress(report(eventTime={}), LagClock()).watermark is None


def test_lag_in_seconds_is_the_age_of_the_oldest_unread_record() -> None:
    clock, partition = LagClock(), ("flights", "0")

    assert clock.seconds(1000, {partition: 10}, {partition: 10}) == 0
    assert clock.seconds(2000, {partition: 10}, {partition: 15}) == 0  # it has come just now
    assert clock.seconds(5000, {partition: 12}, {partition: 30}) == 3
    assert clock.seconds(6000, {partition: 15}, {partition: 30}) == 1, "what came at 2000 is read"
    assert clock.seconds(7000, {partition: 30}, {partition: 30}) == 0


def test_a_new_partition_counts_from_its_beginning() -> None:
    clock = LagClock()
    clock.seconds(1000, {("t", "0"): 5}, {("t", "0"): 5, ("t", "1"): 2})

    assert clock.seconds(4000, {("t", "0"): 5}, {("t", "0"): 5, ("t", "1"): 2}) == 3


def test_a_lag_of_days_is_measured_without_memory_of_each_second() -> None:
    clock, partition = LagClock(), ("flights", "0")
    days_s = 2 * 86_400

    for second in range(0, days_s, 10):
        found = clock.seconds(1000 * second, {partition: 0}, {partition: second + 1})
        assert found == second
    assert len(clock._seen) <= 10 * STEPS

    read = clock.seconds(1000 * days_s, {partition: days_s // 2}, {partition: days_s})
    assert read == pytest.approx(days_s / 2, rel=0.02)
