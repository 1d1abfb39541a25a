"""Queries of Spark over a Kinesis stream: every record once although processes are killed and shards are split."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import TaskContext

from tests.integration.spark.kinesis.conftest import Stream

Streams = Callable[..., Stream]


def values_of(batch: Any) -> list[str]:
    return sorted(row["data"].decode() for row in batch.select("data").collect())


def test_a_run_reads_present_records_and_a_later_run_newer_ones(stream: Streams) -> None:
    flights = stream(3)
    flights.put(100)
    query = flights.sink()
    assert flights.sunk() == flights.values
    assert "fake-secret" not in str(query.lastProgress)

    flights.put(50)
    (one, _) = (each.name for each in flights.fake.kinesis.shards(flights.name)[:2])
    flights.fake.kinesis.split(flights.name, one)
    flights.put(50)
    flights.sink()
    assert flights.sunk() == flights.values
    for path in (flights.home / "checkpoint").rglob("*"):
        assert path.is_dir() or b"fake-secret" not in path.read_bytes()


def test_every_action_on_a_batch_sees_the_same_rows(stream: Streams) -> None:
    flights = stream(2)
    first = flights.put(60)
    seen: list[list[str]] = []
    rows: list[Any] = []

    def take(batch: Any, _: int) -> None:
        # LIMIT reads a part of one shard. Two concurrent actions read a batch like speculative tasks.
        assert len(batch.limit(3).collect()) == 3
        flights.put(20)
        actions = [threading.Thread(target=lambda: seen.append(values_of(batch))) for _ in "ab"]
        for each in actions:
            each.start()
        for each in actions:
            each.join()
        flights.put(20)
        rows.extend(batch.collect())

    flights.run(take)
    assert len(seen) == 2
    assert seen[0] == seen[1] == sorted(row["data"].decode() for row in rows)
    assert set(first) <= set(seen[0])
    (row,) = (each for each in rows if each["data"] == b"000000")
    records = flights.fake.kinesis.records(flights.name, row["shardId"])
    assert row["sequenceNumber"] == str(records[0].sequence_number)
    assert row["partitionKey"] == "key-000000"
    assert row["stream"] == flights.name
    assert row["subSequenceNumber"] is None


def test_a_failed_batch_is_repeated_unchanged_after_a_restart(stream: Streams) -> None:
    flights = stream(2)
    flights.put(60)
    seen: list[tuple[int, list[str]]] = []

    def fail(batch: Any, number: int) -> None:
        seen.append((number, values_of(batch)))
        raise RuntimeError("no space for it")

    def take(batch: Any, number: int) -> None:
        seen.append((number, values_of(batch)))

    with pytest.raises(Exception, match="no space for it"):
        flights.run(fail)
    (shard, *_) = flights.open_shards()
    flights.fake.kinesis.split(flights.name, shard)
    flights.put(60)
    flights.run(take)
    assert seen[0] == seen[1]
    assert sorted(value for _, rows in seen[1:] for value in rows) == flights.values


class Killer(threading.Thread):
    """Kill the Python workers of Spark's tasks when the ends of a round are in the store."""

    def __init__(self, flights: Stream, killed: Path, ends: int) -> None:
        super().__init__()
        self.flights, self.killed, self.ends = flights, killed, ends
        self.count = 0

    def run(self) -> None:
        path = self.flights.store.removeprefix("sqlite:///")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with sqlite3.connect(path) as connection:
                (ends,) = connection.execute(
                    "SELECT COUNT(*) FROM recorded WHERE name LIKE '%shardId%'"
                ).fetchone()
            if ends == self.ends:
                break
            threading.Event().wait(0.02)
        self.flights.put(30)
        workers = [each for each in psutil.Process().children(recursive=True) if _is_worker(each)]
        for each in workers:
            each.kill()
        psutil.wait_procs(workers)
        self.count = len(workers)
        self.killed.touch()


def _is_worker(process: psutil.Process) -> bool:
    try:
        parent = process.parent()
        return (
            parent is not None
            and "pyspark.daemon" in process.cmdline()
            and parent.cmdline() == process.cmdline()
            and process.cmdline()[-1] == "pyspark.worker"
        )
    except psutil.NoSuchProcess:
        return False


def test_workers_that_are_killed_after_the_end_was_written_read_to_it_again(
    stream: Streams, tmp_path: Path
) -> None:
    flights = stream(2)
    for number in range(2):  # more than fits between two processes, so that the readers wait
        for _ in range(6):
            flights.fake.kinesis.put(
                flights.name, bytes(1_000_000), explicit_hash_key=number << 127
            )
    killed = tmp_path / "killed"
    counts: list[int] = []

    def wait(batches: Any) -> Any:
        (tmp_path / f"attempt-{TaskContext.get().attemptNumber()}").touch()
        for batch in batches:
            while not killed.exists():
                time.sleep(0.02)
            yield batch

    def take(batch: Any, number: int) -> None:
        if number == 0:
            killer = Killer(flights, killed, 2)
            killer.start()
            counts.append(batch.mapInArrow(wait, batch.schema).count())
            killer.join()
            assert killer.count
        counts.append(batch.count())

    flights.run(take, deaggregate="false")
    assert counts[:2] == [12, 12]
    assert (tmp_path / "attempt-1").exists()


def test_a_query_reads_every_record_while_shards_are_split_and_merged(stream: Streams) -> None:
    flights = stream(1)
    kinesis, name = flights.fake.kinesis, flights.name
    found: list[tuple[int, str, str]] = []

    def take(batch: Any, number: int) -> None:
        rows = batch.select("shardId", "data").collect()
        found.extend((number, row["shardId"], row["data"].decode()) for row in rows)

    query = (
        flights.stream()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(flights.home / "checkpoint"))
        .start()
    )
    try:
        flights.put(40)
        kinesis.split(name, flights.open_shards()[0])
        flights.put(40)
        _until(query, lambda: len(found) >= 80)
        kinesis.merge(name, *flights.open_shards())
        flights.put(40)
        _until(query, lambda: len(found) >= 120)
        latest = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert set(latest["millisBehindLatest"][name]) <= {
            each.name for each in kinesis.shards(name)
        }
    finally:
        query.stop()
    assert sorted(value for _, _, value in found) == flights.values
    batches = {
        shard: {number for number, each, _ in found if each == shard} for _, shard, _ in found
    }
    parent, *children, last = sorted(batches)
    assert max(batches[parent]) < min(min(batches[each]) for each in children)
    assert max(max(batches[each]) for each in children) < min(batches[last])


def _until(query: Any, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, "the rows do not come"
        threading.Event().wait(0.05)


def test_values_become_columns_and_errors_have_a_reason(stream: Streams) -> None:
    flights = stream(1)
    for value in (b'{"carrier": "UA", "delay": 5}', b"{"):
        flights.fake.kinesis.put(flights.name, value)
    options = {"format": "json", "schema": "carrier STRING, delay INT", "onError": "null"}
    batch = flights.batch(columns="data,sequenceNumber", **options)
    assert batch.columns == ["data", "sequenceNumber", "_error"]
    rows = batch.select("data.carrier", "data.delay", "_error").collect()
    assert [(row["carrier"], row["delay"], row["_error"] is None) for row in rows] == [
        ("UA", 5, True),
        (None, None, False),
    ]
    with pytest.raises(Exception, match="does not decode as json"):
        flights.batch(**{**options, "onError": "fail"}).collect()


def test_secrets_are_not_in_plans(stream: Streams, capsys: pytest.CaptureFixture[str]) -> None:
    flights = stream(1)
    flights.batch().explain(extended=True)
    shown = capsys.readouterr().out
    assert "headrace-kinesis" in shown
    assert "fake-secret" not in shown


def test_a_missing_stream_ends_the_query_before_it_starts(stream: Streams) -> None:
    with pytest.raises(Exception, match="there is no stream 'elsewhere'"):
        stream(1).sink(stream="elsewhere")
