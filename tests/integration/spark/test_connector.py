"""Spark's own Kafka connector reads and writes the same topics, batch and streaming, and sees the same rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.clients.blocking import BlockingClient
from headrace.clients.flows.alter import delete_records
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.types import TopicPartition
from tests.integration.spark.conftest import Reader, Topics, produce_values, run_available, sunk
from tests.integration.spark.test_stream_write import run
from tests.integration.spark.test_write import write


@pytest.fixture(autouse=True)
def connector(jars: list[Path] | str) -> None:
    if isinstance(jars, str):
        pytest.skip(f"no Spark Kafka connector: {jars}")


COMMITTED: dict[str, Any] = {"kafka__isolation__level": "read_committed"}
WHOLE: dict[str, Any] = {"includeHeaders": "true"}


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


def test_headrace_and_the_connector_read_the_same_rows(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
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


def test_headrace_and_the_connector_write_the_same_rows(topics: Topics, read: Reader) -> None:
    written = []
    for source in ("headrace", "kafka"):
        first, second = topics.create(partitions=3), topics.create(partitions=3)
        frame = read.spark.range(0, 60, 1, 2).selectExpr(
            f"IF(id % 2 = 0, '{first}', '{second}') AS topic",
            "CAST(id AS STRING) AS key",
            "IF(id % 5 = 0, NULL, CAST(CONCAT('v', id) AS BINARY)) AS value",
            "IF(id % 3 = 0, CAST(1 AS INT), NULL) AS partition",
            "IF(id % 4 = 0, NULL, array(named_struct('key', 'h', 'value', "
            "IF(id % 7 = 0, NULL, CAST('x' AS BINARY))))) AS headers",
        )
        write(frame, read.bootstrap, source)
        rows = [all_rows(read.batch(topic, includeHeaders="true")) for topic in (first, second)]
        # Topic names differ, and tasks write concurrently: only the contents of the rows can be compared.
        written.append(
            [sorted((row[3], row[1], row[4], str(row[7])) for row in of_topic) for of_topic in rows]
        )

    assert written[0] == written[1]
    assert [len(of_topic) for of_topic in written[0]] == [30, 30]


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


def transactions(bootstrap: str, topic: str) -> headrace.Producer:
    """Write plain records, a committed and an aborted transaction with their markers, and an open transaction."""
    producer = headrace.Producer(
        bootstrap, transactional_id=f"of-{topic}", transaction_timeout_ms=600_000, serde="str"
    )
    with headrace.Producer(bootstrap, serde="str") as plain:
        for partition in (0, 1):
            plain.send(topic, f"plain-{partition}", partition=partition)
    for fate in ("aborted", "committed", "aborted", "aborted"):
        producer.begin_transaction()
        for number in range(6):
            producer.send(topic, f"{fate}-{number}", partition=number % 2)
        producer.flush()
        if fate == "committed":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, "open", partition=0)
    producer.flush()
    return producer


def test_connector_and_source_read_the_same_records_at_each_isolation_level(
    topics: Topics, read: Reader
) -> None:
    topic = topics.create(partitions=2)
    producer = transactions(read.bootstrap, topic)
    committed = ["plain-0", "plain-1", *(f"committed-{number}" for number in range(6))]

    limits: tuple[dict[str, Any], ...] = ({}, {"minPartitions": 7})
    for more in limits:
        theirs = all_rows(read.batch(topic, "kafka", **WHOLE, **COMMITTED, **more))
        assert sorted(row[4].decode() for row in theirs) == sorted(committed)
        assert theirs == all_rows(read.batch(topic, **WHOLE, **COMMITTED, **more))
    everything = all_rows(read.batch(topic, "kafka", **WHOLE))
    assert len(everything) == 2 + 4 * 6 + 1
    assert everything == all_rows(read.batch(topic, **WHOLE))

    producer.commit_transaction()
    producer.close()
    assert read.batch(topic, "kafka", **COMMITTED).where("value = 'open'").count() == 1


def test_a_stream_of_the_connector_goes_past_aborted_records_and_waits_for_open_ones(
    topics: Topics, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create(partitions=2)
    producer = transactions(read.bootstrap, topic)

    def so_far() -> list[str]:
        stream = read.stream(
            topic, "kafka", startingOffsets="earliest", maxOffsetsPerTrigger=12, **COMMITTED
        )
        run_available(stream, tmp_path / "check", tmp_path / "sink")
        return sorted(row[3] for row in sunk(read.spark, tmp_path / "sink"))

    committed = sorted(["plain-0", "plain-1", *(f"committed-{number}" for number in range(6))])
    assert so_far() == committed
    producer.commit_transaction()
    producer.close()
    assert so_far() == sorted([*committed, "open"])


def test_the_connector_streams_every_column_to_what_our_transactions_wrote(
    topics: Topics, read: Reader, tmp_path: Path
) -> None:
    source, result = topics.create(partitions=2), topics.create(partitions=2)
    frame = (
        read.spark.range(0, 20)
        .selectExpr(
            "CAST(id AS STRING) AS key",
            "IF(id = 7, NULL, CONCAT('v', id)) AS value",
            "timestamp_millis(1700000000000 + id) AS timestamp",
            "array(named_struct('key', 'h', 'value', CAST(id AS STRING))) AS headers",
        )
        .selectExpr(
            "key",
            "value",
            "timestamp",
            "CAST(headers AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
        )
    )
    once: dict[str, Any] = {"txnAppId": source, "txnVersion": 1}
    write(frame, read.bootstrap, topic=source, **once)

    stream = read.stream(source, "kafka", startingOffsets="earliest", **WHOLE, **COMMITTED)
    copied = stream.selectExpr("key", "value", "headers", "partition", f"'{result}' AS topic")
    run(copied, read.bootstrap, tmp_path / "copy", source="kafka", **WHOLE)

    given = all_rows(read.batch(source, **WHOLE, **COMMITTED))
    found = all_rows(read.batch(result, **WHOLE))
    columns = [[(row[1], *row[3:5], row[7]) for row in rows] for rows in (given, found)]
    assert columns[0] == columns[1]
    assert len(found) == 20
    assert {row[5] for row in given} == set(range(1_700_000_000_000, 1_700_000_000_020))
    assert found == all_rows(read.batch(result, "kafka", **WHOLE))
    late: dict[str, Any] = {
        "startingTimestamp": 1_700_000_000_015,
        "startingOffsetsByTimestampStrategy": "latest",
    }
    at = all_rows(read.batch(source, "kafka", **late, **WHOLE, **COMMITTED))
    assert at
    assert at == all_rows(read.batch(source, **late, **WHOLE, **COMMITTED))


def test_the_connector_reports_lost_data_or_goes_on(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Path
) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(5))
    run_available(
        read.stream(topic, "kafka", startingOffsets="earliest"), tmp_path / "c", tmp_path / "s"
    )
    shutil.copytree(tmp_path / "c", tmp_path / "lenient")
    produce_values(client, topic, 0, range(5, 20))
    place = TopicPartition(topic, 0)
    client.run(delete_records(client.state, {place: 12}, 10_000))

    with pytest.raises(Exception, match=r"(?i)some data may have been lost"):
        run_available(read.stream(topic, "kafka"), tmp_path / "c", tmp_path / "s")
    lenient = read.stream(topic, "kafka", failOnDataLoss="false")
    found: list[int] = []

    def collect(frame: Any, _batch_id: int) -> None:
        found.extend(row["offset"] for row in frame.select("offset").collect())

    writer = lenient.writeStream.foreachBatch(collect).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "lenient")).start()
    assert query.awaitTermination(120)
    assert sorted(found) == list(range(12, 20))

    given = json.dumps({topic: {"0": 3}})
    kept = read.batch(topic, "kafka", startingOffsets=given, failOnDataLoss="false")
    assert (
        kept.count()
        == read.batch(topic, startingOffsets=given, failOnDataLoss="false").count()
        == 8
    )
