"""Spark's own Kafka connector reads and writes the same topics, batch and streaming, and sees the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.clients.blocking import BlockingClient
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.types import TopicPartition
from tests.spark.conftest import Reader, Topics, produce_values, run_available, sunk
from tests.spark.test_write import write


@pytest.fixture(autouse=True)
def connector(jars: list[Path] | str) -> None:
    if isinstance(jars, str):
        pytest.skip(f"no Spark Kafka connector: {jars}")


def all_rows(frame: Any) -> list[tuple[Any, ...]]:
    shown = frame.selectExpr(
        "topic",
        "partition",
        "offset",
        "key",
        "value",
        "unix_millis(timestamp)",
        "timestampType",
        "coalesce(headers, array())",  # the connector has null where there are none
    )
    return sorted((tuple(row) for row in shown.collect()), key=lambda row: row[:3])


def test_both_read_the_same_rows(topics: Topics, client: BlockingClient, read: Reader) -> None:
    topic = topics.create(partitions=2)
    for codec in Compression:
        records = [
            (b"k", codec.name.encode(), (("h", b"x"),), 1_357_034_400_000 + codec),
            (None, None, (), 1_357_034_400_000),
        ]
        client.produce(TopicPartition(topic, codec % 2), build_batch(records, compression=codec))

    ours = all_rows(read.batch(topic, includeHeaders="true"))
    theirs = all_rows(read.batch(topic, "kafka", includeHeaders="true"))

    assert len(ours) == 10
    assert ours == theirs


def test_the_connector_writes_and_we_read(topics: Topics, read: Reader) -> None:
    topic = topics.create(partitions=3)
    frame = read.spark.range(0, 3000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS key",
        "CONCAT('v', id) AS value",
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers",
    )

    write(frame, read.bootstrap, "kafka", topic=topic, includeHeaders="true")

    ours = all_rows(read.batch(topic, includeHeaders="true"))
    assert sorted(int(row[3]) for row in ours) == list(range(3000))
    assert all(row[4] == b"v" + row[3] for row in ours)
    assert ours == all_rows(read.batch(topic, "kafka", includeHeaders="true"))


def test_we_write_and_the_connector_reads_to_the_same_partitions(
    topics: Topics, read: Reader
) -> None:
    ours, theirs = topics.create(partitions=5), topics.create(partitions=5)
    frame = read.spark.range(0, 500).selectExpr("CAST(id AS STRING) AS key", "'v' AS value")

    write(frame, read.bootstrap, topic=ours)
    write(frame, read.bootstrap, "kafka", topic=theirs)

    placed = [
        sorted(
            (row["partition"], bytes(row["key"])) for row in read.batch(topic, "kafka").collect()
        )
        for topic in (ours, theirs)
    ]
    assert placed[0] == placed[1], "keys are hashed as Kafka's Java client hashes them"
    assert len(placed[0]) == 500


def test_the_connector_streams_in_and_out(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    source, result = topics.create(partitions=2), topics.create(partitions=2)
    produce_values(client, source, 0, range(40))
    produce_values(client, source, 1, range(10))

    def copy_available() -> None:
        stream = read.stream(source, "kafka", startingOffsets="earliest", maxOffsetsPerTrigger=20)
        writer = (
            stream.select("key", "value").writeStream.format("kafka").trigger(availableNow=True)
        )
        writer = writer.option("kafka.bootstrap.servers", read.bootstrap).option("topic", result)
        query = writer.option("checkpointLocation", str(tmp_path / "copy")).start()
        assert query.awaitTermination(120)
        if query.exception() is not None:
            raise query.exception()

    copy_available()
    produce_values(client, source, 1, range(10, 15))
    copy_available()

    run_available(
        read.stream(result, startingOffsets="earliest"), tmp_path / "check", tmp_path / "sink"
    )
    values = sorted(int(value) for *_, value in sunk(read.spark, tmp_path / "sink"))
    assert values == sorted([*range(40), *range(15)])
