"""Reading one range and planning a batch read, against a cluster in memory."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.readers import origin
from headrace.spark.readers.batch import HeadraceBatchReader
from headrace.spark.source.offsets import DataLossError, OffsetRange, TopicDescription
from headrace.spark.source.reading import joined, read_ranges, read_task
from headrace.spark.source.schema import arrow_schema
from headrace.spark.source.tasks import ReadTask
from headrace.types import TopicPartition
from tests.unit.spark.fakes import FakeCluster

A0 = TopicPartition("a", 0)


def options(**changes: Any) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "a"}
    return replace(source_options(base, streaming=False), **changes)


class Time:
    """A clock that advances with each reading and each pause."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def offsets(
    cluster: FakeCluster, start: int, end: int, given: SourceOptions | None = None
) -> list[int]:
    time = Time()
    batches = read_ranges(
        cluster, [OffsetRange(A0, start, end)], given or options(), clock=time, pause=time.pause
    )
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.grow("a", 0, 20)
    return cluster


def test_a_range_is_read_to_its_end_and_no_further(cluster: FakeCluster) -> None:
    assert offsets(cluster, 4, 15) == list(range(4, 15))
    assert offsets(cluster, 4, 15) == list(range(4, 15)), "a repeated task reads the same"


def test_transient_errors_are_retried(cluster: FakeCluster) -> None:
    cluster.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NETWORK_EXCEPTION] * 4

    assert offsets(cluster, 0, 6) == list(range(6))


def test_final_errors_end_the_task_at_once(cluster: FakeCluster) -> None:
    cluster.errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]

    with pytest.raises(ApiError, match="reading a-0"):
        offsets(cluster, 0, 6)
    assert len(cluster.fetches) == 1


def test_removed_records_are_an_error_that_counts_them(cluster: FakeCluster) -> None:
    cluster.logs[A0] = (9, 20)

    with pytest.raises(DataLossError, match=r"offsets 4 to 8 of a-0 were removed .* starts at 9"):
        offsets(cluster, 4, 15)
    assert offsets(cluster, 4, 15, options(fail_on_data_loss=False)) == list(range(9, 15))
    assert offsets(cluster, 0, 5, options(fail_on_data_loss=False)) == []


def test_a_truncated_log_is_an_error_or_skipped(cluster: FakeCluster) -> None:
    with pytest.raises(DataLossError, match=r"offsets 25 to 29 of a-0 do not exist .* ends at 20"):
        offsets(cluster, 25, 30)
    assert offsets(cluster, 25, 30, options(fail_on_data_loss=False)) == []


def test_a_recreated_topic_fails_the_read_of_the_old_topic(
    cluster: FakeCluster,
) -> None:
    planned = [OffsetRange(A0, 0, 20, "id-a"), OffsetRange(TopicPartition("b", 0), 0, 5, "id-b")]
    cluster.grow("b", 0, 5)

    def read(given: SourceOptions) -> list[str]:
        batches = read_ranges(cluster, planned, given)
        return [name for batch in batches for name in batch.column("topic").to_pylist()]

    cluster.stale = [{"a": TopicDescription("id-old", (0,))}]
    assert len(read(options())) == 25
    cluster.ids["a"] = "id-new"
    with pytest.raises(
        DataLossError, match=r"offsets 0 to 19 of a-0 are gone \(the topic was deleted"
    ):
        read(options())
    assert read(options(fail_on_data_loss=False)) == ["b"] * 5


def test_a_wait_for_missing_records_ends_at_the_time_out(cluster: FakeCluster) -> None:
    cluster.batch_records = 0
    with pytest.raises(
        TransportError, match=r"from offset 18 to 19 .* 2 s .*pollTimeoutMs.*see whether a quota"
    ):
        offsets(cluster, 18, 20, options(poll_timeout_ms=2000))


def test_a_time_out_names_the_last_error_and_a_remedy(cluster: FakeCluster) -> None:
    cluster.errors = [ErrorCode.KAFKA_STORAGE_ERROR] * 100
    with pytest.raises(ApiError, match=r"2 s .*last error: KAFKA_STORAGE_ERROR: .*\(free space on"):
        offsets(cluster, 18, 20, options(poll_timeout_ms=2000))


def test_the_partition_that_spark_makes_of_no_partitions_is_empty() -> None:
    assert list(HeadraceBatchReader(options()).read(InputPartition(None))) == []


def test_the_ranges_of_a_task_are_read_one_after_the_other(cluster: FakeCluster) -> None:
    cluster.grow("a", 1, 7)
    task = ReadTask([OffsetRange(TopicPartition("a", 1), 2, 7), OffsetRange(A0, 4, 15)])

    batches = list(read_task(cluster, task, options()))

    rows = [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]
    assert rows == [(1, offset) for offset in range(2, 7)] + [(0, n) for n in range(4, 15)]
    assert len(batches) == 1, "small ones are put together"


def test_a_read_has_only_the_requested_columns(cluster: FakeCluster) -> None:
    given = options(columns=("value", "topic", "headers"))
    (batch,) = read_task(cluster, ReadTask([OffsetRange(A0, 0, 2)]), given)

    assert batch.schema.equals(arrow_schema(given))
    assert batch.to_pylist() == [
        {"value": b"a-0-0", "topic": "a", "headers": []},
        {"value": b"a-0-1", "topic": "a", "headers": []},
    ]


def test_large_arrow_batches_are_passed_on_and_small_ones_put_together() -> None:
    schema = pa.schema([("n", pa.int32())])

    def batch(rows: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"n": range(rows)}, schema)

    sizes = [3, 4, 10_000, 10_000, 9_000, 900, 200, 1]
    found = list(joined([batch(rows) for rows in sizes], schema))
    assert [each.num_rows for each in found] == [7, 10_000, 10_000, 9_900, 201]
    assert all(each.schema.equals(schema) for each in found)


def test_an_abandoned_read_ends_its_thread(cluster: FakeCluster) -> None:
    cluster.batch_records = 10_000  # an Arrow batch each
    cluster.grow("a", 0, 10_000_000)
    batches: Any = read_task(cluster, ReadTask([OffsetRange(A0, 0, 10_000_000)]), options())
    next(batches)
    batches.close()
    assert not [each for each in threading.enumerate() if each.name == "headrace-read-ahead"]
    assert len(cluster.rounds) < 200


def test_every_task_calls_freeze_imports(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[bool] = []
    monkeypatch.setattr(origin, "shared_client", lambda _: cluster)
    monkeypatch.setattr(origin, "freeze_imports", lambda: tasks.append(True))

    for _ in range(2):
        found = origin.read(ReadTask([OffsetRange(A0, 0, 20)]), options())
        assert sum(batch.num_rows for batch in found) == 20

    assert len(tasks) == 2
