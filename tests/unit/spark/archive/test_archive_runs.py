"""A run archives batch after batch until no records are left, a signal arrives, or retries do not help."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import ConfigError, HeadraceError, TransportError
from headrace.spark.archive import running
from headrace.spark.archive.files import ArchivedPartition
from headrace.spark.archive.manifest import SparkTasks, archive_schema, essence, write_task
from headrace.spark.archive.running import ArchiveSettings, run
from headrace.spark.archive.table import create_table
from headrace.spark.archive.table_format import BatchCommit, ConflictError, FinalError
from headrace.spark.archive.writing import FileTarget, write_range
from headrace.spark.source.decoding import decoded
from headrace.spark.source.schema import raw_schema
from headrace.types import TopicPartition
from tests.unit.spark.archive.archive_harness import SCHEMA, ArchiveHarness, rows


class Stopped(threading.Event):
    """An event with virtual time that ends the run after a number of waits."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waits = waits
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0)
        if len(self.waited) >= self.waits:
            self.set()
        return self.is_set()


def settings(harness: ArchiveHarness, **given: Any) -> ArchiveSettings:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "flights"}
    return ArchiveSettings(options, str(harness.root), limits=harness.limits, **given)


def test_a_run_once_ends_at_the_offsets_of_its_start(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path, max_offsets=4)
    harness.cluster.grow("flights", 0, 10)
    work = harness.archiver()
    records = []
    for result in run(work, settings(harness, once=True), Stopped(100)):
        records.append(result.records)
        harness.cluster.grow("flights", 0, 5)  # never to be caught up with
    assert records == [4, 4, 2]


def test_a_run_waits_only_for_few_records_and_ends_on_a_signal(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path, max_offsets=4)
    harness.cluster.grow("flights", 0, 10)
    stopped = Stopped(2)
    results = list(run(harness.archiver(), settings(harness), stopped, clock=lambda: 5.0))
    assert [result.behind for result in results] == [6, 2, 0]
    assert stopped.waited == [60.0, 60.0]


def test_transient_errors_are_retried_and_final_errors_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ArchiveHarness(tmp_path)
    harness.cluster.grow("flights", 0, 3)
    work = harness.archiver()
    execute = work.execute
    failures: list[HeadraceError] = [TransportError("away"), HeadraceError("a task failed")]

    def failing(*arguments: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return execute(*arguments)

    work.execute = failing
    stopped = Stopped(100)
    assert [result.records for result in run(work, settings(harness, once=True), stopped)] == [3]
    assert stopped.waited == [0.5, 1.0]

    harness.cluster.grow("flights", 0, 3)
    failures += [HeadraceError("for ever")] * (running.RETRIES + 2)
    with pytest.raises(HeadraceError, match="for ever"):
        list(run(work, settings(harness, once=True), Stopped(100)))
    for final in (ConfigError("no"), ConflictError("no")):
        failures[:] = [final]
        with pytest.raises(type(final)):
            list(run(work, settings(harness, once=True), Stopped(100)))


def test_a_task_writes_the_committed_records_of_its_ranges(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path)
    harness.cluster.grow("flights", 0, 10)
    source = settings(harness).source()
    assert dict(source.client.properties)["isolation.level"] == "read_committed"
    partition = harness.archiver().table  # makes the directory
    target = FileTarget(partition.root, SCHEMA)
    flights = ArchivedPartition("flights", "id-flights", 0)
    files = list(write_task(harness.cluster, source, target, [(flights, 2, 5), (flights, 5, 10)]))
    assert [(each.file.start, each.file.end, each.file.records) for each in files] == [
        (2, 5, 3),
        (5, 10, 5),
    ]
    assert flights.topic_partition == TopicPartition("flights", 0)


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (
            "headrace.spark.source.offsets.DataLossError: all was removed. Set the option failOnDataLoss to false.",
            "all was removed.",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            "OSError: [Errno 28] No space left on device",
        ),
    ],
)
def test_the_error_of_the_task_is_taken_from_sparks_output(last: str, told: str) -> None:
    text = f"""Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "manifest.py", line 90, in read
{last}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:600)
"""
    assert essence(text) == told
    assert essence("Connection refused\nand more") == "Connection refused"


class EndedSpark:
    """A session whose JVM has ended."""

    class dataSource:  # noqa: N801 - PySpark's name
        @staticmethod
        def register(_: Any) -> None:
            return

    @property
    def read(self) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_run_whose_spark_has_ended_raises_a_final_error(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path)
    harness.cluster.grow("flights", 0, 3)
    work = harness.archiver()
    work.execute = SparkTasks(EndedSpark(), {}, harness.place, 1 << 20)
    with pytest.raises(FinalError, match=r"Spark has ended .*refused\)\. Start the archive again"):
        list(run(work, settings(harness, once=True), Stopped(100)))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_decoded_values_are_a_column_of_structs(kind: str, tmp_path: Path) -> None:
    schema = (
        "carrier string, delay double, legs array<struct<to string, at timestamp>>, "
        "tags map<string, int>, paid decimal(10,2), day date, place struct<lat double, notes string>"
    )
    given = settings(ArchiveHarness(tmp_path), kind=kind)
    options = {**given.options, "format": "json", "schema": schema, "onError": "null"}
    source = dataclasses.replace(given, options=options).source()
    value = (
        b'{"carrier": "UA", "delay": 1.5, "legs": [{"to": "ORD", "at": "2013-01-01T10:00:00Z"}],'
        b' "tags": {"a": 1}, "paid": 12.5, "day": "2013-01-01", "place": {"lat": 1.0}}'
    )
    columns = archive_schema(source)
    table = create_table(kind, tmp_path / "table", None, columns)
    flights = ArchivedPartition("flights", "id-flights", 0)
    raw = rows(flights, [0, 1])
    raw = raw.set_column(1, "value", pa.array([value, b"no JSON"], pa.binary()))
    batches = decoded([raw.select(raw_schema(source).names)], source, columns)
    files = tuple(write_range(FileTarget(table.root, columns), flights, 0, 2, batches))
    table.append(BatchCommit(1, files, {flights: 2}))
    create_table(kind, tmp_path / "table", None, columns)  # the same columns, read back
    first, second = pq.read_table(table.root / files[0].file.path).to_pylist()
    assert (first["value"]["carrier"], first["value"]["place"]["lat"]) == ("UA", 1.0)
    assert second["value"] is None
    assert second["_error"]


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    harness = ArchiveHarness(tmp_path)
    with pytest.raises(ConfigError, match="subscribe"):
        ArchiveSettings({"kafka.bootstrap.servers": "x:1"}, str(harness.root)).source()
    unknown = {"kafka.bootstrap.servers": "x:1", "subscribe": "a", "kafka.no.such": "1"}
    with pytest.raises(ConfigError, match="kafka"):
        ArchiveSettings(unknown, str(harness.root)).source()


def test_an_archive_refuses_its_own_dead_letter_topic() -> None:
    """`headrace archive run --pattern ... --on-error dlq:...`: otherwise each dead letter would become the next one."""
    options = {
        "kafka.bootstrap.servers": "h:1",
        "subscribePattern": "flights[.].*",
        "format": "json",
        "schema": "a INT",
    }
    ArchiveSettings({**options, "onError": "dlq:letters"}, "table").source()
    with pytest.raises(
        ConfigError, match=r"flights[.]dlq, which the query reads .subscribePattern"
    ):
        ArchiveSettings({**options, "onError": "dlq:flights.dlq"}, "table").source()
