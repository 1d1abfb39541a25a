"""Each page of measurements shows the tables of the run that it names."""

from __future__ import annotations

import pytest

from benchmarks.macro.delivery import PAGE as DELIVERY_PAGE
from benchmarks.macro.kinesis_page import PAGE as KINESIS_PAGE
from benchmarks.macro.kinesis_spark import PAGE as KINESIS_SPARK_PAGE
from benchmarks.macro.marked_page import MarkedPage
from benchmarks.macro.page import PAGE, tables
from benchmarks.macro.report import HEADRACE, KAFKA, Results, Row
from benchmarks.macro.secure import PAGE as SECURE_PAGE
from benchmarks.macro.spark_page import PAGE as SPARK_PAGE

FACTS = {
    "commit": "0123456789",
    "kafka": "4.3.0",
    "date": "2026-01-01",
    "rounds": 1,
    "minutes": 1.0,
    "presets": {"os": "page cache"},
    "peers": {},
    "machine": {
        "cores": 2,
        "cpu": "x",
        "memory_gib": 1,
        "kernel": "6",
        "python": "3.11",
        "load_before": [0.1],
    },
}


@pytest.mark.parametrize(
    "page",
    [PAGE, SECURE_PAGE, DELIVERY_PAGE, SPARK_PAGE, KINESIS_PAGE, KINESIS_SPARK_PAGE],
    ids=lambda each: each.path.stem,
)
def test_a_page_shows_the_run_that_it_names(page: MarkedPage) -> None:
    assert page.rendered(page.source()) == page.path.read_text()


def test_lost_rows_are_bold_and_others_are_not() -> None:
    results = Results()
    for metric, mine, theirs in (
        ("records/s", 90.0, 100.0),
        ("p99 ms", 1.2, 1.0),
        ("broker CPU s/GB", 1.0, 2.0),
        ("s to the first acknowledgement", 0.5, 1.0),  # faster, but not ten times
    ):
        results.note(Row("os", "case", metric), HEADRACE, mine)
        results.note(Row("os", "case", metric), KAFKA, theirs)
    text = tables("run", {**FACTS, **results.as_json()})
    for wanted in ("**0.90**", "**1.20**", "**0.50**"):
        assert wanted in text
    assert "| broker CPU s/GB | 1.00 | 2.00 | 0.50 |" in text
    assert "| broker CPU | at most 1.0 | 1 of 1 |" in text
    assert "| throughput | at least 1.0 | **0 of 1** |" in text


def test_the_page_compares_medians() -> None:
    results = Results()
    for mine, theirs in ((1.0, 100.0), (200.0, 100.0), (210.0, 1.0)):
        results.note(Row("os", "case", "records/s"), HEADRACE, mine)
        results.note(Row("os", "case", "records/s"), KAFKA, theirs)
    assert "| case | records/s | 200 | 100 | 2.00 |" in tables(
        "run", {**FACTS, **results.as_json()}
    )
