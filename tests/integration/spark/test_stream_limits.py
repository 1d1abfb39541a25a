"""Limits of batches on real Spark: bytes, the minimum of offsets, and tasks that small partitions share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.clients.blocking import BlockingClient
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.integration.spark.conftest import Reader, Topics, produce_values, run_available

WAIT_S = 60


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_batch_takes_about_as_many_bytes_as_it_may(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    for partition, size in ((0, 1000), (1, 100)):
        for _ in range(4):
            records = [(None, b"1" * size, (), 0)] * 10
            client.produce(TopicPartition(topic, partition), build_batch(records))
    stored = 40 * 1000 + 40 * 100

    query = run_available(
        read.stream(topic, startingOffsets="earliest", maxBytesPerTrigger=stored // 4),
        tmp_path / "checkpoint",
        tmp_path / "sink",
    )

    taken = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert sum(taken) == 80
    assert len(taken) in {4, 5, 6}, taken
    assert max(taken) <= 22, taken


def test_a_batch_waits_for_its_minimum_or_for_the_longest_delay(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create()
    sizes: list[int] = []

    def note(frame: Any, _: int) -> None:
        sizes.append(frame.count())

    produce_values(client, topic, 0, range(3))
    stream = read.stream(
        topic, startingOffsets="earliest", minOffsetsPerTrigger=5, maxTriggerDelay="4s"
    )
    writer = stream.writeStream.foreachBatch(note)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_for(lambda: sizes == [3], f"the first batch does not wait: {sizes}")
        began = time.monotonic()
        produce_values(client, topic, 0, range(2))
        wait_for(lambda: len(sizes) == 2, "the second batch")
        assert sizes == [3, 2]
        assert time.monotonic() - began > 1, "it waited"
        produce_values(client, topic, 0, range(6))
        wait_for(lambda: sum(sizes) == 11, f"the third batch: {sizes}")
        assert sizes == [3, 2, 6]
    finally:
        query.stop()


def test_small_partitions_share_tasks_and_a_batch_keeps_them(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
    topic = topics.create(partitions=12)
    for partition in range(12):
        produce_values(client, topic, partition, range(partition + 1))

    shared = read.batch(topic, maxTasks=3, minPartitions=3)

    assert shared.rdd.getNumPartitions() == 3
    assert sorted((row["partition"], row["offset"]) for row in shared.collect()) == [
        (partition, offset) for partition in range(12) for offset in range(partition + 1)
    ]
