"""Batch reads give the produced records, in every column."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from headrace.clients.blocking import BlockingClient
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.types import TopicPartition
from tests.integration.spark.conftest import Reader, Topics, produce_values

START_MS = 1_357_034_400_123
RECORDS = [
    (b"k0", b"v0", (), START_MS),
    (None, b"no key", (), START_MS + 1),
    (b"no value", None, (), START_MS + 2),
    (None, None, (), START_MS + 3),
    (b"", b"", (("h", b"1"), ("h", None), ("\N{SNOWMAN}", b"")), START_MS + 4),
    (b"\x00\xff", bytes(range(256)) * 300, (("trace", b"abc"),), START_MS + 5),
]


def rows(frame: Any) -> list[dict[str, Any]]:
    """Return all rows in order, with the time also in milliseconds, because a datetime depends on the time zone."""
    ordered = frame.selectExpr("*", "unix_millis(timestamp) AS at_ms").orderBy(
        "topic", "partition", "offset"
    )
    return [row.asDict(recursive=True) for row in ordered.collect()]


@pytest.mark.parametrize("codec", list(Compression), ids=lambda codec: codec.name.lower())
def test_every_column_of_every_record(
    topics: Topics, client: BlockingClient, read: Reader, codec: Compression
) -> None:
    topic = topics.create(partitions=2)
    client.produce(TopicPartition(topic, 1), build_batch(RECORDS[:2], compression=codec))
    client.produce(TopicPartition(topic, 1), build_batch(RECORDS[2:], compression=codec))

    found = rows(read.batch(topic, includeHeaders="true"))

    assert [row["offset"] for row in found] == list(range(6))
    for row, (key, value, headers, timestamp_ms) in zip(found, RECORDS, strict=True):
        assert row["key"] == key
        assert row["value"] == value
        assert (row["topic"], row["partition"], row["timestampType"]) == (topic, 1, 0)
        assert row["at_ms"] == timestamp_ms
        assert [(each["key"], each["value"]) for each in row["headers"]] == list(headers)


def test_the_column_of_the_log_append_time_is_filled(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
    topic = topics.create(message_timestamp_type="LogAppendTime")
    produced = client.produce(TopicPartition(topic, 0), build_batch(RECORDS[:2]))

    found = rows(read.batch(topic))

    assert [(row["timestampType"], row["at_ms"]) for row in found] == [
        (1, produced.log_append_time_ms)
    ] * 2


def test_the_schema_is_that_of_sparks_connector(topics: Topics, read: Reader) -> None:
    topic = topics.create()

    names = [(column.name, column.dataType.simpleString()) for column in read.batch(topic).schema]

    assert names == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert read.batch(topic, includeHeaders="true").schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


def test_an_empty_topic_is_an_empty_frame(topics: Topics, read: Reader) -> None:
    assert read.batch(topics.create(partitions=3)).count() == 0


def test_several_topics_partitions_and_a_pattern(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
    first, second = topics.create(partitions=3), topics.create()
    for partition in range(3):
        produce_values(client, first, partition, range(partition * 100, partition * 100 + 4))
    produce_values(client, second, 0, range(5))

    assert read.batch(f"{first}, {second}").count() == 17
    assigned = read.batch("", assign=f'{{"{first}": [0, 2]}}')
    assert {row["partition"] for row in assigned.collect()} == {0, 2}
    assert read.batch("", subscribePattern=f"{second[:-1]}.").count() == 5


def test_a_read_has_the_records_of_its_offset_range(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
    topic = topics.create(partitions=2)
    for partition in range(2):
        produce_values(client, topic, partition, range(10))

    frame = read.batch(
        topic,
        startingOffsets=f'{{"{topic}": {{"0": 3, "1": -2}}}}',
        endingOffsets=f'{{"{topic}": {{"0": -1, "1": 4}}}}',
    )

    found = sorted((row["partition"], row["offset"]) for row in frame.collect())
    assert found == [(0, offset) for offset in range(3, 10)] + [(1, offset) for offset in range(4)]


def test_more_rows_than_an_arrow_batch_and_a_fetch_hold(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
    topic = topics.create()
    for part in range(6):
        produce_values(client, topic, 0, range(part * 5000, part * 5000 + 5000))

    frame = read.batch(topic, **{"kafka.max.partition.fetch.bytes": "100000"})

    found = frame.selectExpr(
        "count(*)", "count(DISTINCT offset)", "sum(CAST(CAST(value AS STRING) AS INT))"
    )
    assert tuple(found.first()) == (30_000, 30_000, sum(range(30_000)))


def test_a_read_that_is_run_twice_gives_the_same(
    topics: Topics, client: BlockingClient, read: Reader
) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(20))
    frame = read.batch(topic, endingOffsets=f'{{"{topic}": {{"0": 15}}}}')

    assert frame.count() == 15
    produce_values(client, topic, 0, range(20))
    assert frame.count() == 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "latest"}, "cannot be latest in a batch read"),
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic"),
        ({"kafka.security.protocol": "NONSENSE"}, "security.protocol"),
        ({"subscribePattern": "x"}, "exactly one of"),
    ],
)
def test_wrong_options_are_one_clear_error(
    read: Reader, options: dict[str, str], message: str
) -> None:
    builder = read.spark.read.format("headrace").option("kafka.bootstrap.servers", read.bootstrap)
    builder = builder.option("subscribe", "a")
    for name, value in options.items():
        builder = builder.option(name, value)

    with pytest.raises((AnalysisException, PySparkException), match=message):
        builder.load().count()


def test_a_custom_schema_is_refused(topics: Topics, read: Reader) -> None:
    builder = read.spark.read.format("headrace").schema("value string")
    builder = builder.option("kafka.bootstrap.servers", read.bootstrap)

    with pytest.raises(PySparkException, match=r"columns .* are fixed"):
        builder.option("subscribe", topics.create()).load().count()


def test_an_unreachable_broker_is_one_clear_error(read: Reader) -> None:
    builder = read.spark.read.format("headrace").option("kafka.bootstrap.servers", "127.0.0.1:9")
    builder = builder.option("subscribe", "a").option("kafka.request.timeout.ms", "1000")

    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:9"):
        builder.load().count()


def test_a_view_keeps_its_options(topics: Topics, client: BlockingClient, read: Reader) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(3))
    read.spark.sql(
        f"CREATE OR REPLACE TEMP VIEW from_sql USING headrace "
        f"OPTIONS ('kafka.bootstrap.servers' '{read.bootstrap}', subscribe '{topic}')"
    )

    assert read.spark.sql("SELECT count(*) FROM from_sql").first()[0] == 3


def test_a_table_that_would_lose_its_options_is_not_made(topics: Topics, read: Reader) -> None:
    topic = topics.create()

    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        read.spark.sql(
            f"CREATE TABLE made_in_sql USING headrace "
            f"OPTIONS ('kafka.bootstrap.servers' '{read.bootstrap}', subscribe '{topic}')"
        )
    assert not read.spark.catalog.tableExists("made_in_sql")
