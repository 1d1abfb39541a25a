"""Streams are written once although tasks end, commits fail, batches are repeated and their division changes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext, cloudpickle

import headrace
from headrace.clients.blocking import BlockingClient
from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.options.sink import sink_options
from headrace.spark.sink.cluster import Cluster
from headrace.spark.sink.producer import end_transactions
from headrace.spark.sink.stream import HeadraceStreamWriter
from tests.integration.spark.conftest import Reader, Topics, produce_values


def start(
    frame: Any, bootstrap: str, checkpoint: Path, mode: str = "append", **options: Any
) -> Any:
    source = options.pop("source", "headrace")
    writer = frame.writeStream.format(source).outputMode(mode).trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", bootstrap)
    for name, value in {"checkpointLocation": str(checkpoint), **options}.items():
        writer = writer.option(name.replace("__", "."), value)
    return writer.start()


def run(frame: Any, bootstrap: str, checkpoint: Path, mode: str = "append", **options: Any) -> None:
    query = start(frame, bootstrap, checkpoint, mode, **options)
    assert query.awaitTermination(120), "the stream did not end"
    if query.exception() is not None:
        raise query.exception()


def written(topics: Topics, topic: str, partitions: int = 2) -> list[str]:
    """Return the committed values.

    Wait for a mark in each partition, because a commit may be answered before it is visible.
    """
    places = [headrace.TopicPartition(topic, number) for number in range(partitions)]
    with headrace.Producer(topics.bootstrap) as producer:
        marks = [producer.send(topic, b"mark", partition=place.partition) for place in places]
        ends = {place: mark.result().offset for place, mark in zip(places, marks, strict=True)}
    found: list[str] = []
    with headrace.Consumer(
        topics.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(places)
        while not all((consumer.positions().get(each) or 0) > ends[each] for each in places):
            found += (record.value.decode() for record in consumer.poll(0.1))
    return sorted((value for value in found if value != "mark"), key=int)


def numbers(*ranges: range) -> list[str]:
    return [str(number) for each in ranges for number in each]


class FaultyWriter(HeadraceStreamWriter):
    """A sink whose process ends during a task, or whose driver fails during a commit."""

    fault = ""

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        assert context is not None
        if self.fault != "task" or context.partitionId() or context.attemptNumber():
            return super().write(iterator)
        return super().write(self._dying(iterator))

    @staticmethod
    def _dying(iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            yield batch.slice(0, batch.num_rows // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        if self.fault != "commit" or batchId != 1:
            super().commit(messages, batchId)
            return

        def first_only(self: Cluster, transactions: Any, *, committed: bool) -> Any:
            return end_transactions(
                self.client, transactions[: 1 if committed else None], committed=committed
            )

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Cluster, "end", first_only)
            super().commit(messages, batchId)
            raise RuntimeError("the driver dies here")


class FaultySink(HeadraceDataSource):
    """The source and sink under test, with injected faults."""

    @classmethod
    def name(cls) -> str:
        return "headrace-faulty"

    def streamWriter(self, schema: Any, overwrite: Any) -> Any:  # noqa: N802 - Spark's name
        options = dict(self.options)
        fault = options.pop("fault", "")
        writer = FaultyWriter(sink_options(options, streaming=True), schema)
        writer.fault = fault
        return writer


@pytest.fixture
def faulty(spark: Any) -> str:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FaultySink)
    return FaultySink.name()


def two_tasks(read: Reader, source: str) -> Any:
    """Read the rows of a topic of two partitions with two tasks, however few there are."""
    return read.stream(source, startingOffsets="earliest", minPartitions=2).select("key", "value")


def test_a_stream_goes_on_where_it_stopped_and_its_empty_batch_counts(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    source, result = topics.create(partitions=2), topics.create(partitions=2)
    stream = two_tasks(read, source)
    run(stream, read.bootstrap, tmp_path, topic=result)  # there is nothing yet
    for first in (0, 10):
        for partition in range(2):
            produce_values(
                client, source, partition, range(first + 5 * partition, first + 5 * partition + 5)
            )
        run(stream, read.bootstrap, tmp_path, topic=result)

    assert written(topics, result) == numbers(range(20))
    groups = [
        each.group_id
        for each in client.list_groups()
        if each.group_id.startswith("headrace-spark-")
    ]
    marks = [mark for group in groups for mark in client.committed_offsets(group).values()]
    assert (3, ["2", "2", "10"]) in [(mark.offset, mark.metadata.split()[:3]) for mark in marks], (
        "three batches, the last of two partitions"
    )


def test_a_task_that_dies_and_is_repeated_writes_its_rows_once(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path, faulty: str
) -> None:
    source, result = topics.create(partitions=2), topics.create(partitions=2)
    for partition in range(2):
        produce_values(client, source, partition, range(50 * partition, 50 * partition + 50))
    stream = two_tasks(read, source)

    run(
        stream,
        read.bootstrap,
        tmp_path,
        topic=result,
        source=faulty,
        fault="task",
        kafka__linger__ms=0,
    )

    assert written(topics, result) == numbers(range(100))


def test_a_commit_that_fails_in_the_middle_is_completed_by_the_next_start(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path, faulty: str
) -> None:
    source, result = topics.create(partitions=2), topics.create(partitions=2)
    stream = two_tasks(read, source)
    for first in (0, 100):
        for partition in range(2):
            produce_values(
                client,
                source,
                partition,
                range(first + 50 * partition, first + 50 * partition + 50),
            )
        if not first:
            run(stream, read.bootstrap, tmp_path, topic=result, source=faulty)
    with pytest.raises(Exception, match="the driver dies here"):
        run(stream, read.bootstrap, tmp_path, topic=result, source=faulty, fault="commit")
    half = written(topics, result)
    assert len(half) == 150, "one of two partitions was committed"

    with pytest.raises(Exception, match=r"was first written as 2 partitions of 100 rows"):
        run(stream.coalesce(1), read.bootstrap, tmp_path, topic=result)
    assert written(topics, result) == half
    run(stream, read.bootstrap, tmp_path, topic=result)

    assert written(topics, result) == numbers(range(200))


def test_complete_mode_appends_every_result_and_update_mode_is_sparks_to_refuse(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    source, result = topics.create(), topics.create(partitions=2)
    counts = read.stream(source, startingOffsets="earliest").groupBy().count()
    counts = counts.selectExpr("CAST(count AS STRING) AS value")
    for first in (0, 3):
        produce_values(client, source, 0, range(first, first + 3))
        run(counts, read.bootstrap, tmp_path / "complete", "complete", topic=result)

    assert written(topics, result) == ["3", "6"]
    with pytest.raises(Exception, match="does not support Update mode"):
        run(counts, read.bootstrap, tmp_path / "update", "update", topic=result)


def test_at_least_once_has_no_transactions(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    source, result = topics.create(), topics.create(partitions=2)
    produce_values(client, source, 0, range(10))
    before = len(client.list_groups())
    stream = read.stream(source, startingOffsets="earliest").select("value")

    run(stream, read.bootstrap, tmp_path, topic=result, delivery="at_least_once")

    assert written(topics, result) == numbers(range(10))
    assert len(client.list_groups()) == before


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["value"], {"topic": "t"}, "column value must be binary or string, not bigint"),
        (["'v' AS value"], {}, "set the option topic"),
        (["'v' AS value"], {"topic": "t", "txnAppId": "a"}, "are for batch writes"),
        (["'v' AS value"], {"topic": "no/name"}, "no/name"),
    ],
)
def test_rows_that_cannot_be_written_are_one_clear_error(
    read: Reader, tmp_path: Path, columns: list[str], options: dict[str, str], message: str
) -> None:
    rates = read.spark.readStream.format("rate").load().selectExpr(*columns)

    with pytest.raises(Exception, match=message):
        run(rates, read.bootstrap, tmp_path, **options)


def test_a_repeated_batch_write_is_stored_once(topics: Topics, read: Reader) -> None:
    result = topics.create(partitions=2)
    frame = read.spark.range(0, 40, 1, 3).selectExpr("CAST(id AS STRING) AS value")

    def write(version: int) -> None:
        writer = frame.write.format("headrace").mode("append")
        writer = writer.option("kafka.bootstrap.servers", read.bootstrap).option("topic", result)
        writer.option("txnAppId", result).option("txnVersion", version).save()

    for version in (7, 7, 9):
        write(version)

    assert written(topics, result) == sorted(numbers(range(40)) * 2, key=int)
    with pytest.raises(Exception, match=r"batch 8 of .* comes after batch 9 was written"):
        write(8)
