"""Batch writes: the written rows can be read."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headrace.clients.blocking import BlockingClient
from tests.integration.spark.conftest import Reader, Topics, produce_values

SCHEMA = (
    "key binary, value binary, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
AT = dt.datetime(2013, 1, 1, 10, 0, 0, 123_000, dt.UTC)


def write(frame: Any, bootstrap: str, source: str = "headrace", **options: Any) -> None:
    writer = frame.write.format(source).mode("append").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save()


def test_every_column_comes_back(topics: Topics, read: Reader) -> None:
    topic = topics.create(partitions=3)
    given = [
        (bytearray(b"k"), bytearray(b"v"), topic, 2, AT, [("h", bytearray(b"1")), ("n", None)]),
        (None, bytearray(b"only a value"), topic, 0, AT, []),
        (bytearray(b"tombstone"), None, topic, 1, AT, None),
    ]
    write(read.spark.createDataFrame(given, SCHEMA), read.bootstrap)

    frame = read.batch(topic, includeHeaders="true").orderBy("partition")
    found = frame.selectExpr(
        "key", "value", "partition", "unix_millis(timestamp) AS at", "headers"
    ).collect()

    at = int(AT.timestamp() * 1000)
    assert [tuple(row)[:4] for row in found] == [
        (None, b"only a value", 0, at),
        (b"tombstone", None, 1, at),
        (b"k", b"v", 2, at),
    ]
    assert [[tuple(each) for each in row["headers"]] for row in found] == [
        [],
        [],
        [("h", b"1"), ("n", None)],
    ]


def test_strings_the_topic_option_and_many_rows(topics: Topics, read: Reader) -> None:
    topic, other = topics.create(partitions=2), topics.create()
    frame = read.spark.range(0, 20_000, 1, 4).selectExpr(
        "CAST(id AS STRING) AS key", "CONCAT('v', id) AS value", f"'{other}' AS topic"
    )

    write(frame, read.bootstrap, topic=topic, kafka__compression__type="lz4")

    found = read.batch(topic).selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
    assert sorted(int(key) for key, _ in found) == list(range(20_000))
    assert all(value == f"v{key}" for key, value in found)
    assert read.batch(other).count() == 0, "the option wins over the column"


def test_from_a_topic_to_a_topic_in_a_stream(
    topics: Topics, client: BlockingClient, read: Reader, tmp_path: Any
) -> None:
    source, result = topics.create(partitions=2), topics.create(partitions=2)
    for partition in range(2):
        produce_values(client, source, partition, range(50))

    def copy(frame: Any, _batch_id: int) -> None:
        write(frame.select("key", "value", "headers"), read.bootstrap, topic=result)

    stream = read.stream(source, startingOffsets="earliest", includeHeaders="true")
    query = stream.writeStream.foreachBatch(copy).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)

    found = sorted(int(row["value"]) for row in read.batch(result).collect())
    assert found == sorted([*range(50), *range(50)])


@pytest.mark.parametrize(
    ("expression", "options", "message"),
    [
        (["id AS value"], {"topic": "t"}, "column value must be binary or string, not bigint"),
        (["'x' AS key"], {"topic": "t"}, "a column value is needed, got key"),
        (["'x' AS value"], {}, "set the option topic"),
        (["'x' AS value", "1 AS extra"], {"topic": "t"}, "unknown column extra"),
        (["'x' AS value"], {"topic": "t", "subscribe": "t"}, "unknown option subscribe"),
        (["'x' AS value", "CAST(NULL AS STRING) AS topic"], {}, "a row has no topic"),
        (["'x' AS value"], {"topic": "t", "kafka.acks": "most"}, "acks"),
    ],
)
def test_rows_that_cannot_be_written_are_one_clear_error(
    read: Reader, expression: list[str], options: dict[str, str], message: str
) -> None:
    frame = read.spark.range(1).selectExpr(*expression)

    with pytest.raises(PySparkException, match=message):
        write(frame, read.bootstrap, **options)


def test_topics_are_never_overwritten(topics: Topics, read: Reader) -> None:
    writer = (
        read.spark.range(1).selectExpr("'x' AS value").write.format("headrace").mode("overwrite")
    )
    writer = writer.option("kafka.bootstrap.servers", read.bootstrap).option(
        "topic", topics.create()
    )

    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.save()


def test_reads_by_time_see_rows_and_no_markers(topics: Topics, read: Reader) -> None:
    """The records' times are a month before the times of the transaction markers of exactly-once writes."""
    topic = topics.create()
    first_ms = 1_792_880_000_000
    for version in range(3):
        ids = f"range({10 * version}, {10 * version + 10})"
        rows = read.spark.sql(
            "SELECT CAST(id AS STRING) AS value, "
            f"timestamp_millis({first_ms} + 1000 * id) AS timestamp FROM {ids}"
        )
        write(rows.coalesce(1), read.bootstrap, topic=topic, txnAppId=topic, txnVersion=version)

    def found(**options: Any) -> list[int]:
        frame = read.batch(topic, kafka__isolation__level="read_committed", **options)
        return sorted(int(row[0]) for row in frame.selectExpr("CAST(value AS STRING)").collect())

    at_25 = first_ms + 25_000
    assert found(startingTimestamp=at_25) == list(range(25, 30))
    assert found(endingTimestamp=at_25) == list(range(25))
    assert found(startingTimestamp=first_ms + 9_500, endingTimestamp=at_25) == list(range(10, 25))
