"""The measurements of `bench` are consistent, on Headrace and on Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from headrace.cli.commands.bench import _percentile
from tests.conformance.cli.conftest import Commands

NewTopic = Callable[..., str]


def test_bench_reads_the_records_that_it_wrote(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "3")
    written = headrace.json("bench", "produce", topic, "-n", "5000", "-s", "50", "--keys", "4")
    assert (written["records"], written["bytes"], written["failed"]) == (5000, 250_000, 0)
    assert written["records_per_s"] == pytest.approx(5000 / written["seconds"], rel=0.05)
    latency = written["latency_ms"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    read = headrace.json("bench", "consume", topic)
    assert (read["records"], read["bytes"]) == (5000, 250_000 + 5000)
    assert 0 < read["first_record_s"] <= read["seconds"]
    keys = headrace.lines("consume", topic, "-e", "-n", "5000", "-f", "%k\\n")
    assert set(keys) == {"0", "1", "2", "3"}
    table = headrace.run("bench", "produce", topic, "-n", "10", "-z", "zstd", "--acks", "1")
    assert b"records/s" in table.stdout


def test_a_rate_is_kept(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    written = headrace.json("bench", "produce", topic, "-n", "100", "--rate", "200")
    assert written["seconds"] >= 99 / 200
    assert written["records_per_s"] <= 210


def test_a_missing_argument_is_reported(headrace: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("-p", "1")
    done = headrace.run(
        "bench", "consume", topic, "-n", "1", "--timeout", "1s", "--format", "json", code=1
    )
    assert json.loads(done.stdout)["records"] == 0
    assert b"0 of 1 records arrived" in done.stderr
    assert headrace.json("bench", "consume", topic)["records"] == 0
    for command in (("produce", "-n", "1"), ("consume",)):
        done = headrace.run("bench", command[0], "missing", *command[1:], code=1)
        assert b"missing" in done.stderr


def test_percentiles_are_in_milliseconds_and_none_without_values() -> None:
    values = [number * 1_000_000 for number in range(1, 101)]
    assert [_percentile(values, each) for each in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert _percentile([7_000_000], 99) == 7.0
    assert _percentile([], 50) is None
