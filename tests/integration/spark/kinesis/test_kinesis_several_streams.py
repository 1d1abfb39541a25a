"""One query over several streams: each record once, one checkpoint, and streams that are added and removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import LeaseStoreError
from headrace.spark.source.offsets import DataLossError
from headrace.testing.kinesis import FakeAws, Limits
from tests.integration.spark.kinesis.conftest import Stream
from tests.integration.spark.kinesis.queries import Query, put_numbers

FIRST = "shardId-000000000000"


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with FakeAws(limits=Limits().unthrottled(), region="eu-central-1") as fake:
        fake.kinesis.create_stream("flights", 2)
        fake.kinesis.create_stream("weather", 1)
        yield fake


@pytest.fixture
def query(aws: FakeAws, tmp_path: Path) -> Callable[..., Query]:
    def make(stream: str = "flights,weather", **options: str) -> Query:
        given = {
            "stream": stream,
            "region": aws.region,
            "endpointUrl": aws.endpoint_url,
            "accessKeyId": "fake",
            "secretAccessKey": "fake",
            "store": f"sqlite:///{tmp_path}/store.db",
            "startingPosition": "earliest",
            "pollInterval": "200ms",
        }
        return Query({**given, **options})

    return make


def test_every_record_of_each_stream_is_read_once_despite_resharding(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    values = put_numbers(aws, "flights", range(60))
    values += put_numbers(aws, "weather", range(1000, 1040))
    both = query(maxRecordsPerShard="15", maxTasks="2")
    both.plan()
    first = both.rows()
    assert {len(value) for value in first} == {6}
    assert any(value >= "001000" for value in first)
    aws.kinesis.split("weather", FIRST)
    values += put_numbers(aws, "weather", range(1040, 1080))
    values += put_numbers(aws, "flights", range(60, 90))
    both.restart()
    assert both.rows() == first
    assert both.run() == sorted(values)
    behind = both.reader.reportLatestOffset() or {}
    assert behind["millisBehindLatest"].keys() == {"flights", "weather"}


def test_tasks_and_bytes_are_shared_by_the_shards_of_all_streams(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    for stream in ("flights", "weather"):
        put_numbers(aws, stream, range(20))
    both = query(maxBytesPerTrigger="3m", maxTasks="2")
    both.plan()
    tasks = both.tasks()
    assert [task.bounds.max_bytes for task in tasks] == [1 << 20, 1 << 20]
    found = [str(each) for task in tasks for each in task.shards]
    assert sorted(found) == [
        f"{FIRST} of flights",
        f"{FIRST} of weather",
        "shardId-000000000001 of flights",
    ]


def test_a_checkpoint_of_the_first_format_accepts_further_streams(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    values = put_numbers(aws, "flights", range(50))
    alone = query("flights", maxRecordsPerShard="10")
    alone.plan()
    _as_first_form(alone)
    alone.restart()
    rows = alone.rows()
    assert rows
    values += put_numbers(aws, "weather", range(1000, 1040))
    alone.restart(stream="weather,flights")
    assert alone.rows() == rows
    alone.batches, alone.done = [rows], 1
    assert alone.run() == sorted(values)
    assert json.loads(alone.checkpoint[-1])["version"] == 2


def _as_first_form(query: Query) -> None:
    """Log the plan of a batch as the first version did. No task has read the batch yet."""
    end = json.loads(query.checkpoint[-1])
    ((stream, part),) = end["planned"].pop("streams").items()
    end |= {"version": 1, "planned": end["planned"] | part | {"stream": stream}}
    query.checkpoint[-1] = json.dumps(end)


def test_the_start_of_a_new_stream_is_fixed_before_its_first_record(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    values = put_numbers(aws, "flights", range(10))
    put_numbers(aws, "weather", range(1000, 1010))
    both = query("flights")
    both.run()
    aws.advance(1000)
    both.restart(available_now=False, stream="flights,weather", startingPosition="latest")
    both.reader.planner._followed["weather"]._clock = aws.clock.now_ms
    assert both.batch()
    aws.advance(1000)
    values += put_numbers(aws, "weather", range(1010, 1020))  # no query runs
    both.restart(available_now=False)
    assert both.batch()
    assert sorted(value for rows in both.batches for value in rows) == sorted(values)


def test_a_stream_that_the_options_no_longer_name_is_reported(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    values = put_numbers(aws, "flights", range(10))
    both = query()
    both.run()
    put_numbers(aws, "weather", range(1000, 1010))
    values += put_numbers(aws, "flights", range(10, 20))
    both.restart(stream="flights")
    with pytest.raises(
        DataLossError, match="stream weather, which the option stream does not name any more"
    ):
        both.plan()
    both.restart(failOnDataLoss="false")
    assert both.run() == sorted(values)
    assert "weather" not in both.checkpoint[-1]


def test_a_recreated_stream_fails_the_query_or_is_read_from_its_start(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    values = put_numbers(aws, "flights", range(10))
    both = query()
    both.run()
    aws.kinesis.call("DeleteStream", StreamName="weather")
    aws.advance(2_000)
    aws.kinesis.create_stream("weather", 1)
    values += put_numbers(aws, "weather", range(1000, 1010))
    both.restart(available_now=False)
    with pytest.raises(
        DataLossError, match=r"weather@\d+ now: the stream was deleted and created again"
    ):
        both.plan()
    both.restart(available_now=False, failOnDataLoss="false")
    assert both.batch()
    assert sorted(value for rows in both.batches for value in rows) == sorted(values)


def test_a_store_without_the_last_round_is_reported_for_several_streams(
    aws: FakeAws, query: Callable[..., Query], tmp_path: Path
) -> None:
    put_numbers(aws, "flights", range(10))
    both = query()
    both.run()
    both.restart(store=f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(LeaseStoreError, match="does not have round"):
        both.plan()


def test_rows_of_two_streams_name_their_stream(spark: Any, stream: Callable[..., Stream]) -> None:
    flights, weather = stream(2), stream(1)
    flights.put(30)
    weather.put(20)
    rows = flights.batch(stream=f"{flights.name}, {weather.name}").collect()
    for each in (flights, weather):
        found = [row["data"].decode() for row in rows if row["stream"] == each.name]
        assert sorted(found) == each.values


def test_a_query_of_spark_reads_two_streams(spark: Any, stream: Callable[..., Stream]) -> None:
    flights, weather = stream(2), stream(1)
    both = {"stream": f"{flights.name},{weather.name}"}
    flights.put(40)
    flights.sink(**both)
    weather.put(25)
    flights.put(10)
    flights.fake.kinesis.split(weather.name, weather.open_shards()[0])
    weather.put(25)
    flights.sink(**both)
    assert flights.sunk() == sorted(flights.values + weather.values)
