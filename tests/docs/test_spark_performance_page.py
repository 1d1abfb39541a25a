"""The report of the Spark comparison: the goal of each row, and which variants are compared."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.macro.report import HEADRACE, Results, Row
from benchmarks.macro.spark_page import CONNECTOR, ONCE, PYTHON, SHOWN

FACTS: dict[str, Any] = {
    "commit": "0123456789",
    "date": "2026-01-01",
    "spark": "4.3.0",
    "connector": "4.2.0",
    "rounds": 2,
    "minutes": 1.0,
    "scale": "full",
    "conf": {},
    "machine": {
        "cores": 2,
        "cpu": "x",
        "memory_gib": 1,
        "kernel": "6",
        "python": "3.11",
        "load_before": [0.1],
    },
}


def _facts(*values: tuple[Row, str, float]) -> dict[str, Any]:
    results = Results()
    for row, target, value in values:
        results.note(row, target, value)
    return {**FACTS, **results.as_json()}


@pytest.mark.parametrize(
    ("part", "metric", "mine", "shown"),
    [
        ("batch read", "rows/s", 100.0, "1.00 | at least 1.0 |"),
        ("batch read", "rows/s", 99.0, "**0.99** | at least 1.0 |"),
        ("archive", "rows/s", 200.0, "2.00 | at least 2.0 |"),
        ("archive", "rows/s", 199.0, "**1.99** | at least 2.0 |"),
        ("archive", "CPU us/row", 101.0, "**1.01** | at most 1.0 |"),
        ("latency", "p99 ms", 100.0, "1.00 | at most 1.0 |"),
        ("stream read", "median batch ms", 120.0, "**1.20** | at most 1.0 |"),
    ],
)
def test_rows_below_the_goal_are_bold(part: str, metric: str, mine: float, shown: str) -> None:
    row = Row(part, "a case", metric)
    assert shown in SHOWN.tables("run", _facts((row, HEADRACE, mine), (row, CONNECTOR, 100.0)))


def test_each_variant_is_compared_with_the_connector() -> None:
    row = Row("stream write", "100 B", "rows/s")
    text = SHOWN.tables(
        "run", _facts((row, HEADRACE, 150.0), (row, ONCE, 50.0), (row, CONNECTOR, 100.0))
    )
    assert "| 100 B | rows/s | 100 | 150 | 1.50 | 50.00 | **0.50** | at least 1.0 |" in text
    assert "| stream write | Headrace | rows/s | 1 of 1 |" in text
    assert "| stream write | Headrace, exactly once | rows/s | **0 of 1** |" in text
    assert "without the accelerator" not in text


def test_the_report_compares_medians_and_has_the_extremes() -> None:
    row = Row("batch read", "100 B", "rows/s")
    values = [(row, PYTHON, each) for each in (110.0, 300.0, 200.0)]
    values += [(row, CONNECTOR, each) for each in (400.0, 100.0, 120.0)]
    facts = _facts(*values)
    assert "| 120 | 200 | 1.67 |" in SHOWN.tables("run", facts)
    assert "| 120 (100 .. 400) | 200 (110 .. 300) | 1.67 |" in SHOWN.report(facts)


def test_the_page_reports_a_load_that_failed() -> None:
    row = Row("archive", "100 B", "rows/s")
    facts = _facts((row, CONNECTOR, 100.0)) | {"failures": ["archive, headrace: no disk"]}
    for text in (SHOWN.tables("run", facts), SHOWN.report(facts)):
        assert "* archive, headrace: no disk" in text
