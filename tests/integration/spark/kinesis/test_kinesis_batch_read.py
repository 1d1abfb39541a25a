"""Batch reads of a Kinesis stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.spark.kinesis.conftest import Stream


def test_a_batch_read_has_all_shards_closed_ones_too(stream: Callable[..., Stream]) -> None:
    flights = stream(2)
    flights.put(60)
    flights.fake.kinesis.split(flights.name, flights.open_shards()[0])
    flights.put(60)
    rows = flights.batch(maxTasks="2").collect()
    assert sorted(row["data"].decode() for row in rows) == flights.values
    assert len({row["shardId"] for row in rows}) == 4


def test_a_batch_read_has_a_beginning_and_an_end(stream: Callable[..., Stream]) -> None:
    flights = stream(1)
    flights.put(30)
    times = flights.batch(columns="approximateArrivalTimestamp").selectExpr(
        "CAST(unix_millis(approximateArrivalTimestamp) AS LONG) AS ms"
    )
    stamps = sorted(row["ms"] for row in times.collect())
    middle = stamps[15]
    before = flights.batch(endingTimestamp=str(middle)).count()
    since = flights.batch(startingPosition=f"AT_TIMESTAMP:{middle}").count()
    assert before == sum(each <= middle for each in stamps)
    assert since == sum(each >= middle for each in stamps)


def test_the_columns_are_those_of_the_document(stream: Callable[..., Stream]) -> None:
    flights = stream(1)
    types = [(each.name, each.dataType.simpleString()) for each in flights.batch().schema]
    assert types == [
        ("partitionKey", "string"),
        ("data", "binary"),
        ("stream", "string"),
        ("shardId", "string"),
        ("sequenceNumber", "string"),
        ("subSequenceNumber", "bigint"),
        ("approximateArrivalTimestamp", "timestamp"),
    ]
    assert flights.batch(columns="explicitHashKey").columns == ["explicitHashKey"]
    assert flights.batch().count() == 0
    with pytest.raises(Exception, match="did you mean failOnDataLoss"):
        flights.batch(failOnDataLos="true")


def test_a_view_keeps_its_options(spark: Any, stream: Callable[..., Stream]) -> None:
    flights = stream(1)
    flights.put(5)
    options = ", ".join(f"{name} '{value}'" for name, value in flights.aws.items())
    spark.sql(f"CREATE TEMPORARY VIEW flown USING `headrace-kinesis` OPTIONS ({options})")
    assert spark.sql("SELECT COUNT(*) AS n FROM flown").collect()[0]["n"] == 5
    spark.sql("DROP VIEW flown")
