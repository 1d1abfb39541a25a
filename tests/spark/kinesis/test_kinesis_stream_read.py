"""A stream of Kinesis as a streaming source: every record once, whatever stops, splits or is read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.spark.kinesis.conftest import Stream

Streams = Callable[..., Stream]


def test_a_run_takes_what_is_there_and_a_later_run_what_came_since(stream: Streams) -> None:
    flights = stream(3)
    flights.put(100)
    flights.sink()
    assert flights.sunk() == flights.values

    flights.put(50)
    flights.sink()
    flights.sink()
    assert flights.sunk() == flights.values


def test_the_rows_have_the_columns_of_the_document(stream: Streams) -> None:
    flights = stream(1)
    flights.put(1)
    rows: list[Any] = []
    flights.run(lambda batch, _: rows.extend(batch.collect()))
    (record,) = flights.fake.kinesis.records(flights.name)
    (row,) = rows
    assert row.asDict() == {
        "partitionKey": "key-000000",
        "data": b"000000",
        "stream": flights.name,
        "shardId": "shardId-000000000000",
        "sequenceNumber": str(record.sequence_number),
        "subSequenceNumber": None,
        "approximateArrivalTimestamp": row["approximateArrivalTimestamp"],
    }
