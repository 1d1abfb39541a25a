"""Rows are written to a Kinesis stream and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.testing.kinesis import drop_connection, fail_records, throttle
from tests.integration.spark.kinesis.conftest import KEYS, Stream

Streams = Callable[..., Stream]


def write(rows: Any, flights: Stream, **options: str) -> None:
    rows.write.format("headrace-kinesis").mode("append").options(
        **{**flights.aws, **options}
    ).save()


def numbers(spark: Any, count: int) -> Any:
    return spark.range(count).selectExpr(
        "CONCAT('key-', id % 7) AS partitionKey", "LPAD(CAST(id AS STRING), 6, '0') AS data"
    )


def test_rows_come_back_as_they_were_written(spark: Any, stream: Streams) -> None:
    flights = stream(3)
    write(numbers(spark, 500), flights)
    rows = flights.batch(columns="partitionKey,data").collect()
    assert sorted(row["data"].decode() for row in rows) == [f"{each:06d}" for each in range(500)]
    assert all(row["partitionKey"] == f"key-{int(row['data']) % 7}" for row in rows)


def test_aggregated_rows_are_read_back_as_single_rows(spark: Any, stream: Streams) -> None:
    flights = stream(2)
    write(numbers(spark, 300), flights, aggregate="true")
    assert len(flights.fake.kinesis.records(flights.name)) < 100
    rows = flights.batch(columns="data,sequenceNumber,subSequenceNumber").collect()
    assert sorted(row["data"].decode() for row in rows) == [f"{each:06d}" for each in range(300)]
    assert len({(row["sequenceNumber"], row["subSequenceNumber"]) for row in rows}) == 300


def test_refused_records_are_repeated_and_lost_answers_cost_duplicates_only(
    spark: Any, stream: Streams
) -> None:
    flights = stream(2)
    faults = flights.fake.kinesis.faults
    faults.on("PutRecords", fail_records(0, 3), times=1, stream=flights.name)
    faults.on("PutRecords", throttle(), times=1, stream=flights.name)
    faults.on("PutRecords", drop_connection(handled=True), times=1, stream=flights.name)
    write(numbers(spark, 400).coalesce(1), flights)
    found = [record.data.decode() for record in flights.fake.kinesis.records(flights.name)]
    assert set(found) == {f"{each:06d}" for each in range(400)}


def test_a_row_may_say_its_stream_and_its_hash_key(spark: Any, stream: Streams) -> None:
    one, other = stream(2), stream(1)
    rows = spark.createDataFrame(
        [
            (one.name, "key", b"low", "0"),
            (one.name, "key", b"high", str(KEYS - 1)),
            (other.name, "key", b"other", None),
        ],
        "stream STRING, partitionKey STRING, data BINARY, explicitHashKey STRING",
    )
    given = {name: value for name, value in one.aws.items() if name != "stream"}
    rows.write.format("headrace-kinesis").mode("append").options(**given).save()
    kinesis = one.fake.kinesis
    shards = [
        [each.data for each in kinesis.records(one.name, shard.name)]
        for shard in kinesis.shards(one.name)
    ]
    assert shards == [[b"low"], [b"high"]]
    assert [each.data for each in kinesis.records(other.name)] == [b"other"]


def test_columns_that_cannot_be_written_are_reported_before_a_job_runs(
    spark: Any, stream: Streams
) -> None:
    flights = stream(1)
    rows = numbers(spark, 3)
    with pytest.raises(Exception, match="there is no stream 'elsewhere'"):
        write(rows, flights, stream="elsewhere")
    with pytest.raises(Exception, match="a row has no partitionKey"):
        write(rows.coalesce(1).selectExpr("CAST(NULL AS STRING) AS partitionKey", "data"), flights)
    assert not flights.fake.kinesis.records(flights.name)
