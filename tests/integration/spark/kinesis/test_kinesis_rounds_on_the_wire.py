"""Rounds planned and read as Spark does it, over HTTP from the fake, with faults between all steps."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, LeaseStoreError, StreamNotFoundError
from headrace.spark.kinesis.batch import KinesisBatchReader
from headrace.spark.kinesis.connections import shared_connections
from headrace.spark.kinesis.options import read_options
from headrace.spark.source.offsets import DataLossError
from headrace.testing.kinesis import FakeAws, Limits, throttle
from tests.integration.spark.kinesis.queries import Query, put_numbers

FIRST = "shardId-000000000000"
DAY_MS = 86_400_000


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    """A query with a clock that tests move."""
    with FakeAws(limits=Limits().unthrottled(), region="eu-central-1") as fake:
        yield fake


@pytest.fixture
def query(aws: FakeAws, tmp_path: Path) -> Callable[..., Query]:
    def make(
        stream: str, *, available_now: bool = True, aws_time: bool = False, **options: str
    ) -> Query:
        given = {
            "stream": stream,
            "region": aws.region,
            "endpointUrl": aws.endpoint_url,
            "accessKeyId": "fake",
            "secretAccessKey": "fake",
            "store": f"sqlite:///{tmp_path / uuid.uuid4().hex}.db",
            "startingPosition": "earliest",
            "pollInterval": "200ms",
        }
        return Query({**given, **options}, available_now, aws.clock.now_ms if aws_time else None)

    return make


def store_of(query: Query) -> sqlite3.Connection:
    return sqlite3.connect(query.given["store"].removeprefix("sqlite:///"))


def names_of(query: Query) -> list[str]:
    with store_of(query) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM recorded ORDER BY name")]


def test_a_batch_is_read_three_times_and_is_the_same_while_records_come(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 3)
    values = put_numbers(aws, "flights", range(200))
    flights = query("flights", available_now=False)
    assert flights.plan()
    first = flights.rows()
    values += put_numbers(aws, "flights", range(200, 300))
    assert flights.rows() == first
    flights.restart(available_now=True, maxRecordsPerShard="25")
    assert flights.rows() == first
    assert flights.run() == values


def test_a_task_that_stops_in_the_middle_has_decided_where_the_round_ends(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 1)
    values = put_numbers(aws, "flights", range(50))
    flights = query("flights", available_now=False)
    flights.plan()
    (task,) = flights.tasks()
    rows: Any = flights.reader.read(task)
    next(rows)
    rows.close()  # as LIMIT and killed workers do
    put_numbers(aws, "flights", range(50, 80))
    assert flights.rows() == values


def test_shards_that_no_task_has_read_come_again(aws: FakeAws, query: Callable[..., Query]) -> None:
    aws.kinesis.create_stream("flights", 4)
    values = put_numbers(aws, "flights", range(100))
    flights = query("flights", maxTasks="4")
    flights.plan()
    flights.batches.append(flights.read(flights.tasks()[0]))
    flights.done = 1
    assert 0 < len(flights.batches[0]) < 100
    assert flights.run() == values


def test_a_run_without_readers_ends_and_the_next_run_reads_its_batches(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 2)
    values = put_numbers(aws, "flights", range(20))
    flights = query("flights")
    assert flights.plan()
    flights.done = 1
    assert not flights.plan()
    flights.restart()
    assert flights.run() == values


def test_splits_and_merges_while_it_runs_and_while_it_does_not(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 2)
    values = put_numbers(aws, "flights", range(100))
    flights = query("flights", maxRecordsPerShard="20")
    flights.batch()
    aws.kinesis.split("flights", FIRST)
    values += put_numbers(aws, "flights", range(100, 150))
    flights.run()
    _, one, other = (each.name for each in aws.kinesis.shards("flights", only_open=True))
    aws.kinesis.merge("flights", one, other)
    values += put_numbers(aws, "flights", range(150, 200))
    (left, _) = (each.name for each in aws.kinesis.shards("flights", only_open=True))
    aws.kinesis.split("flights", left)
    values += put_numbers(aws, "flights", range(200, 250))
    flights.restart()
    assert flights.run() == values
    place = {value: number for number, rows in enumerate(flights.batches) for value in rows}
    parents = {record.data.decode() for record in aws.kinesis.records("flights", FIRST)}
    children = {record.data.decode() for record in aws.kinesis.records("flights", left)}
    assert max(place[each] for each in parents) < min(place[each] for each in children)


@pytest.mark.parametrize("shard_end", ["with_data", "extra_call"])
def test_a_shard_ends_with_or_without_records_in_its_last_read(
    shard_end: str, tmp_path: Path
) -> None:
    with FakeAws(limits=Limits().unthrottled(), shard_end=shard_end) as aws:  # type: ignore[arg-type]  # one of the two
        aws.kinesis.create_stream("flights", 1)
        values = put_numbers(aws, "flights", range(30))
        aws.kinesis.split("flights", FIRST)
        values += put_numbers(aws, "flights", range(30, 60))
        flights = Query(
            {
                "stream": "flights",
                "region": aws.region,
                "endpointUrl": aws.endpoint_url,
                "accessKeyId": "fake",
                "secretAccessKey": "fake",
                "store": f"sqlite:///{tmp_path}/store.db",
                "startingPosition": "earliest",
            }
        )
        assert flights.run() == values


def test_latest_is_fixed_by_the_first_batch(aws: FakeAws, query: Callable[..., Query]) -> None:
    aws.kinesis.create_stream("flights", 2)
    put_numbers(aws, "flights", range(20))
    aws.advance(1000)
    flights = query("flights", startingPosition="latest", aws_time=True)
    assert flights.batch()
    assert flights.batches == [[]]
    aws.advance(1000)
    values = put_numbers(aws, "flights", range(20, 50))  # no query runs
    flights.restart(available_now=False)
    assert flights.batch()
    assert sorted(flights.batches[-1]) == values


def test_records_after_the_start_are_left_for_the_next_run(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 2)
    values = put_numbers(aws, "flights", range(40))
    flights = query("flights", maxRecordsPerShard="10")
    aws.advance(5_000)
    late = put_numbers(aws, "flights", range(40, 80))
    assert flights.run() == values
    flights.restart(available_now=False)
    for _ in range(2):
        flights.batch()
    assert set(flights.batches[-1]) <= set(late)
    assert flights.batches[-1]


def test_limits_bound_each_batch(aws: FakeAws, query: Callable[..., Query]) -> None:
    aws.kinesis.create_stream("flights", 2)
    values = put_numbers(aws, "flights", range(100))
    flights = query("flights", maxRecordsPerShard="7")
    assert flights.run() == values
    assert max(len(rows) for rows in flights.batches) <= 14


def test_bytes_bound_each_batch(aws: FakeAws, query: Callable[..., Query]) -> None:
    aws.kinesis.create_stream("flights", 2)
    for number in range(12):
        aws.kinesis.put("flights", bytes(500_000), explicit_hash_key=number % 2 << 127)
    flights = query("flights", maxBytesPerTrigger="2m", deaggregate="false")
    flights.plan()
    sizes = [
        len(value)
        for task in flights.tasks()
        for batch in flights.reader.read(task)
        for value in batch.column("data").to_pylist()
    ]
    assert 2 <= len(sizes) <= 6


def test_throttling_and_lost_iterators_do_not_fail_a_read(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 2)
    values = put_numbers(aws, "flights", range(60))
    flights = query("flights", maxRecordsPerShard="20")
    aws.kinesis.faults.on("GetRecords", throttle(), times=3)
    flights.batch()
    aws.kinesis.expire_iterators()
    assert flights.run() == values


def test_an_idle_stream_makes_no_batches(aws: FakeAws, query: Callable[..., Query]) -> None:
    aws.kinesis.create_stream("flights", 2)
    flights = query("flights", available_now=False)
    assert flights.batch()  # the first, which pins where it began
    calls = aws.kinesis.calls.count("GetRecords")
    for _ in range(200):
        assert not flights.batch()
    assert aws.kinesis.calls.count("GetRecords") - calls < 40


def test_ends_that_no_plan_needs_are_deleted(aws: FakeAws, query: Callable[..., Query]) -> None:
    aws.kinesis.create_stream("flights", 2)
    put_numbers(aws, "flights", range(100))
    flights = query("flights", maxRecordsPerShard="5")
    flights.run()
    assert len(flights.batches) > 8
    assert len({name.partition("/")[0] for name in names_of(flights)}) <= 3


def test_two_queries_share_nothing(aws: FakeAws, query: Callable[..., Query]) -> None:
    aws.kinesis.create_stream("flights", 2)
    values = put_numbers(aws, "flights", range(50))
    one = query("flights")
    other = Query(one.given)
    one.run()
    values += put_numbers(aws, "flights", range(50, 60))
    other.restart()
    assert other.run() == values


def test_a_lost_store_is_reported_and_repeats_one_batch_at_most(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 2)
    values = put_numbers(aws, "flights", range(60))
    flights = query("flights", maxRecordsPerShard="10")
    flights.batch()
    flights.batch()
    with store_of(flights) as connection:
        connection.execute("DELETE FROM recorded")
    flights.restart()
    with pytest.raises(LeaseStoreError, match=r"does not have round 1 .*failOnDataLoss"):
        flights.plan()
    twice = flights.batches[-1]
    flights.restart(failOnDataLoss="false")
    assert flights.run() == sorted(values + twice)


def test_a_store_that_is_lost_before_a_batch_is_done_is_reported(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 2)
    values = put_numbers(aws, "flights", range(20))
    flights = query("flights")
    flights.plan()
    with store_of(flights) as connection:
        connection.execute("DELETE FROM recorded")
    flights.restart()
    with pytest.raises(LeaseStoreError, match="does not have round 0"):
        flights.rows()
    flights.restart(failOnDataLoss="false")
    assert flights.run() == values


def test_a_task_notices_that_its_store_is_another(
    aws: FakeAws, query: Callable[..., Query], tmp_path: Path
) -> None:
    aws.kinesis.create_stream("flights", 1)
    put_numbers(aws, "flights", range(5))
    flights = query("flights")
    flights.plan()
    (task,) = flights.tasks()
    flights.restart(store=f"sqlite:///{tmp_path}/elsewhere.db")
    with pytest.raises(LeaseStoreError, match="it is another store: a file on another machine"):
        flights.read(task)


def test_records_that_expire_between_two_reads_of_a_batch_are_reported(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 1)
    put_numbers(aws, "flights", range(30))
    flights = query("flights", available_now=False)
    flights.plan()
    assert len(flights.rows()) == 30
    aws.advance(DAY_MS + 60_000)
    put_numbers(aws, "flights", range(30, 40))
    with pytest.raises(
        DataLossError, match=r"had 30 records, .* records were removed in the meantime"
    ):
        flights.rows()
    flights.restart(available_now=False, failOnDataLoss="false")
    assert flights.rows() == []


def test_records_that_kinesis_has_not_removed_yet_are_not_taken_for_lost(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 1)
    values = put_numbers(aws, "flights", range(30))
    flights = query("flights", available_now=False, aws_time=True, maxRecordsPerShard="20")
    flights.batch()
    flights.clock = lambda: aws.clock.now_ms() + DAY_MS + 60_000
    flights.restart(available_now=False)
    flights.batch()
    assert flights.run() == values


def test_a_query_that_pauses_for_longer_than_records_live_reports_the_loss(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 1)
    put_numbers(aws, "flights", range(30))
    flights = query("flights", available_now=False, aws_time=True)
    flights.batch()
    aws.advance(DAY_MS + 60_000)
    values = put_numbers(aws, "flights", range(30, 40))
    flights.restart(available_now=False)
    with pytest.raises(DataLossError, match=r"was read up to .* retention is 24 hours"):
        flights.plan()
    flights.restart(available_now=False, failOnDataLoss="false")
    flights.batch()
    assert flights.batches[-1] == values


def test_a_quiet_stream_is_never_taken_for_lost(aws: FakeAws, query: Callable[..., Query]) -> None:
    aws.kinesis.create_stream("flights", 1)
    flights = query("flights", available_now=False, aws_time=True)
    flights.batch()
    for _ in range(10):
        aws.advance(3 * 3_600_000 + 60_000)
        flights.batch()
    assert 6 < len(flights.checkpoint) < 12
    flights.restart(available_now=False)
    assert not flights.plan()


def test_a_stream_that_was_created_again_is_lost_data(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 1)
    put_numbers(aws, "flights", range(10))
    flights = query("flights", available_now=False)
    flights.batch()
    aws.kinesis.call("DeleteStream", StreamName="flights")
    aws.advance(2_000)
    aws.kinesis.create_stream("flights", 1)
    values = put_numbers(aws, "flights", range(10, 30))
    flights.restart(available_now=False)
    with pytest.raises(DataLossError, match="deleted and created again"):
        flights.plan()
    flights.restart(available_now=False, failOnDataLoss="false")
    flights.batch()
    assert flights.batches[-1] == values


def test_positions_of_shards_are_taken_over_from_another_consumer(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    aws.kinesis.create_stream("flights", 1)
    put_numbers(aws, "flights", range(10))
    done = aws.kinesis.put("flights", b"done")
    values = put_numbers(aws, "flights", range(10, 20))
    starting = json.dumps({FIRST: f"AFTER:{done.sequence_number}"})
    assert query("flights", startingPosition=starting).run() == values


def test_impossible_options_are_reported_before_a_job_runs(
    aws: FakeAws, query: Callable[..., Query]
) -> None:
    with pytest.raises(StreamNotFoundError, match="there is no stream 'nowhere'"):
        query("nowhere").plan()
    aws.kinesis.create_stream("flights", 1)
    with pytest.raises(StreamNotFoundError, match="check region"):
        query("flights", region="us-west-1").plan()
    with pytest.raises(ConfigError, match=r"option store=sqlite:////proc/nowhere/store\.db"):
        query("flights", store="sqlite:////proc/nowhere/store.db").plan()


def test_a_task_of_a_table_reads_its_shards_at_the_same_time_and_may_stop_anywhere(
    aws: FakeAws,
) -> None:
    aws.kinesis.create_stream("flights", 8)
    for number in range(32):  # several replies of each shard, with pauses for Kinesis's limits
        aws.kinesis.put("flights", bytes(700_000), explicit_hash_key=number // 4 << 125)
    given = {
        "stream": "flights",
        "region": aws.region,
        "endpointUrl": aws.endpoint_url,
        "accessKeyId": "fake",
        "secretAccessKey": "fake",
        "deaggregate": "false",
        "maxTasks": "1",
        "columns": "shardId",
    }
    reader = KinesisBatchReader(read_options(given, streaming=False))
    (task,) = reader.partitions()

    def is_interleaved() -> bool:
        shards = [str(row) for batch in reader.read(task) for row in batch.column(0).to_pylist()]
        assert sorted(shards) == sorted(f"shardId-{number // 4:012d}" for number in range(32))
        return shards != sorted(shards)

    # Each shard's second reply comes behind the first of others, unless the machine is too busy for several requests.
    assert any(is_interleaved() for _ in range(5))
    rows: Any = reader.read(task)
    next(rows)
    rows.close()
    assert not shared_connections().run(_left())


async def _left() -> set[Any]:
    """Return the pending reads of an abandoned task."""
    reads = {each for each in asyncio.all_tasks() if "fetch" in repr(each)}
    ended, going = await asyncio.wait(reads, timeout=10) if reads else (set(), set())
    return going | {each for each in ended if not each.cancelled()}
