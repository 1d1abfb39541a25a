"""docs/reports/client-performance.md shows the tables of the run that it names."""

from __future__ import annotations

from typing import Any

from benchmarks.macro.client_page import PAGE, SHOWN
from benchmarks.macro.report import Results, Row

FACTS: dict[str, Any] = {
    "commit": "0123456789",
    "date": "2026-01-01",
    "rounds": 1,
    "minutes": 1.0,
    "versions": {"aiokafka": "1", "kafka-python": "2", "headrace": "0123456789"},
    "machine": {
        "cores": 2,
        "cpu": "x",
        "memory_gib": 1,
        "kernel": "6",
        "python": "3.11",
        "load_before": [0.1],
    },
}


def shown(values: dict[str, dict[str, float]]) -> str:
    results = Results()
    for metric, by_client in values.items():
        for client, value in by_client.items():
            results.note(Row("os", "produce", metric), client, value)
    return SHOWN.tables("run", {**FACTS, **results.as_json()})


def test_the_page_shows_the_run_that_it_names() -> None:
    assert PAGE.rendered(PAGE.source()) == PAGE.path.read_text()


def test_asyncio_and_blocking_clients_are_compared_with_their_kind() -> None:
    text = shown(
        {
            "records/s": {
                "headrace": 50.0,
                "headrace.aio": 300.0,
                "aiokafka": 200.0,
                "kafka-python": 100.0,
            }
        }
    )
    assert "| aiokafka | 1 of 1 | - |" in text
    assert "| kafka-python | 0 of 1 | produce, records/s: 0.50 |" in text


def test_a_lower_cost_counts_as_better() -> None:
    text = shown({"p99 ms": {"headrace": 1.0, "kafka-python": 4.0}})
    assert "| kafka-python | 1 of 1 | - |" in text


def test_a_row_of_headrace_alone_is_not_compared() -> None:
    text = shown({"records/s": {"headrace": 123.0}})
    assert "| produce | records/s | 123 |" in text
