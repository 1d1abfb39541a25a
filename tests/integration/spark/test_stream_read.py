"""Streams have every record once, with restarts, limits, failing batches, new partitions and lost data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from headrace.clients.blocking import BlockingClient
from tests.integration.spark.conftest import Reader, Topics, produce_values, run_available, sunk


def expected(topic: str, sizes: dict[int, int]) -> list[tuple[str, int, int, str]]:
    return [(topic, partition, n, str(n)) for partition, size in sizes.items() for n in range(size)]


def logged_batches(checkpoint: Path) -> int:
    return sum(1 for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


def test_available_now_with_a_limit_reads_all_in_several_batches(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    produce_values(client, topic, 0, range(80))
    produce_values(client, topic, 1, range(20))

    query = run_available(
        read.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=30),
        tmp_path / "checkpoint",
        tmp_path / "sink",
    )

    assert sunk(read.spark, tmp_path / "sink") == expected(topic, {0: 80, 1: 20})
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert [progress["numInputRows"] for progress in batches] == [30, 30, 30, 10]
    assert json.loads(batches[0]["sources"][0]["latestOffset"]) == {topic: {"0": 80, "1": 20}}


def test_a_restarted_query_continues_at_its_checkpoint(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    checkpoint, sink = tmp_path / "checkpoint", tmp_path / "sink"
    for round_number in range(3):
        produce_values(client, topic, 0, range(round_number * 10, round_number * 10 + 10))
        produce_values(client, topic, 1, range(round_number, round_number + 1))
        stream = read.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=7)
        run_available(stream, checkpoint, sink)

    assert sunk(read.spark, sink) == expected(topic, {0: 30, 1: 3})
    run_available(read.stream(topic, startingOffsets="earliest"), checkpoint, sink)
    assert len(sunk(read.spark, sink)) == 33, "nothing new, nothing again"


class Collector:
    """A `foreachBatch` sink that keeps rows by batch id, as an idempotent sink does, and fails on demand."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.failing: set[int] = set()

    def __call__(self, frame: Any, batch_id: int) -> None:
        rows = sorted((row["partition"], row["offset"]) for row in frame.collect())
        before = self.batches.setdefault(batch_id, rows)
        assert before == rows, f"batch {batch_id} came again with other rows"
        if batch_id in self.failing:
            self.failing.discard(batch_id)
            raise RuntimeError("the sink fails once")

    def run(self, stream: Any, checkpoint: Path) -> Any:
        writer = stream.writeStream.foreachBatch(self).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination(120)
        return query

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for batch in self.batches.values() for row in batch)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_batch_that_failed_is_run_again_with_the_same_records(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path, failing: int
) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(40))
    sink = Collector()
    sink.failing.add(failing)
    stream = read.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)

    with pytest.raises(StreamingQueryException, match="the sink fails once"):
        sink.run(stream, tmp_path / "checkpoint")
    produce_values(client, topic, 0, range(40, 45))
    sink.run(stream, tmp_path / "checkpoint")

    assert sink.rows == [(0, offset) for offset in range(45)]
    assert len(sink.batches) >= 5


def test_latest_stays_where_it_was_when_the_first_batch_fails(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(5))
    checkpoint = tmp_path / "checkpoint"
    sink = Collector()
    sink.failing.add(0)
    with pytest.raises(StreamingQueryException, match="the sink fails once"):
        sink.run(read.stream(topic, startingOffsets="latest"), checkpoint)

    produce_values(client, topic, 0, range(5, 9))  # after the query began: it must see them
    sink.run(read.stream(topic, startingOffsets="latest"), checkpoint)

    assert sink.rows == [(0, offset) for offset in range(5, 9)]


def test_a_batch_that_was_done_but_not_noted_is_run_again_with_the_same_records(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(20))
    checkpoint = tmp_path / "checkpoint"
    sink = Collector()
    stream = read.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    sink.run(stream, checkpoint)
    produce_values(client, topic, 0, range(20, 30))
    done = logged_batches(checkpoint)
    for path in (checkpoint / "commits").glob(f"*{done - 1}*"):  # as if the driver had died before
        path.unlink()

    sink.run(stream, checkpoint)

    assert sink.rows == [(0, offset) for offset in range(30)]


def test_a_task_that_fails_is_repeated_with_the_same_range(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(3000))
    marker = str(tmp_path / "attempted")

    def fail_first(batches: Any) -> Any:
        for batch in batches:
            if not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("the first attempt fails")
            yield batch

    stream = read.stream(topic, startingOffsets="earliest")
    query = (
        stream.mapInArrow(fail_first, stream.schema)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "sink"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)

    found = sorted(
        row["offset"] for row in read.spark.read.parquet(str(tmp_path / "sink")).collect()
    )
    assert Path(marker).exists()
    assert found == list(range(3000))


def test_topics_that_appear_later_are_read_from_their_beginning(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    first = topics.create()
    produce_values(client, first, 0, range(3))
    pattern = {"subscribePattern": f"{first}.*", "startingOffsets": "latest"}
    run_available(read.stream("", **pattern), tmp_path / "checkpoint", tmp_path / "sink")
    second = topics.create(name=f"{first}-more", partitions=2)
    produce_values(client, first, 0, range(3, 5))
    produce_values(client, second, 1, range(4))

    run_available(read.stream("", **pattern), tmp_path / "checkpoint", tmp_path / "sink")

    assert sunk(read.spark, tmp_path / "sink") == [
        *((first, 0, n, str(n)) for n in (3, 4)),
        *((second, 1, n, str(n)) for n in range(4)),
    ]


def test_records_removed_before_they_were_read_stop_the_query_or_are_passed_over(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(4))
    checkpoint, sink = tmp_path / "checkpoint", tmp_path / "sink"
    run_available(read.stream(topic, startingOffsets="earliest"), checkpoint, sink)
    topics.delete(topic)
    topics.create_again(topic)
    produce_values(client, topic, 0, range(100, 106))
    shutil.copytree(checkpoint, tmp_path / "lenient")

    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        run_available(read.stream(topic), checkpoint, sink)
    lenient = read.stream(topic, failOnDataLoss="false")
    collected = Collector()
    collected.run(lenient, tmp_path / "lenient")
    assert collected.rows == [(0, offset) for offset in range(6)], (
        "the new topic from its beginning"
    )


def test_a_running_query_follows_the_topic(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create()
    query = (
        read.stream(topic, startingOffsets="earliest")
        .writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for round_number in range(3):
            produce_values(client, topic, 0, range(round_number * 4, round_number * 4 + 4))
            query.processAllAvailable()
            assert read.spark.table("followed").count() == (round_number + 1) * 4
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger must be a positive whole number"),
    ],
)
def test_wrong_options_are_one_clear_error(
    read: Reader, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        run_available(read.stream("a", **options), tmp_path / "checkpoint", tmp_path / "sink")
    assert "UnboundLocalError" not in str(caught.value)
