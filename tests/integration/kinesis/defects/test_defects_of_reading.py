"""Shards and records: the published consumer loses, repeats or stops at some of them, and Headrace does not."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.kinesis.aggregation.encoding import Aggregate
from headrace.testing.kinesis import FakeAws, Limits, delay, throttle
from tests.integration.kinesis.group.apps import fake_aws, quick
from tests.integration.kinesis.group.team import Entry, Team

FIRST = "shardId-000000000000"


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with fake_aws() as aws:
        yield aws


def put(aws: FakeAws, numbers: range, stream: str = "orders") -> list[str]:
    for number in numbers:
        aws.kinesis.put(stream, b"%d" % number, f"key-{number}")
    return [str(number) for number in numbers]


def test_an_idle_shard_costs_a_call_a_second_and_hardly_a_write(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)

    async def scenario() -> None:
        streams = quick(
            aws, "orders", leases="dynamodb://leases", lease_duration_ms=6_000, poll_ms=1_000
        )
        team = Team(streams)
        team.join("a")
        await team.wait_for(lambda: aws.kinesis.calls.count("GetRecords") > 0)
        aws.kinesis.calls.clear()
        aws.dynamodb.calls.clear()
        await asyncio.sleep(4)  # the test measures calls of an idle time
        assert 2 <= aws.kinesis.calls.count("GetRecords") <= 6
        assert aws.kinesis.calls.count("GetShardIterator") == 0
        assert aws.dynamodb.calls.count("GetItem") == 0
        assert aws.dynamodb.calls.count("UpdateItem") <= 4
        await team.leave()

    asyncio.run(scenario())


def test_reading_continues_when_kinesis_throttles(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(10))
    aws.kinesis.faults.on("GetRecords", throttle(), times=4)

    async def scenario() -> None:
        team = Team(quick(aws, "orders"))
        team.join("a")
        await team.wait_for_values(10)
        await team.leave()
        assert team.values == [str(number) for number in range(10)]

    asyncio.run(scenario())


def test_reading_continues_with_a_new_iterator_when_one_expires(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(10))

    async def scenario() -> None:
        team = Team(quick(aws, "orders"))
        team.join("a")
        await team.wait_for_values(10)
        aws.kinesis.expire_iterators()
        put(aws, range(10, 20))
        await team.wait_for_values(20)
        await team.leave()
        assert team.values == [str(number) for number in range(20)]

    asyncio.run(scenario())


@pytest.mark.parametrize("shard_end", ["with_data", "extra_call"])
def test_children_are_read_when_their_parent_is_read_to_its_end(shard_end: Any) -> None:
    with FakeAws(limits=Limits().unthrottled(), shard_end=shard_end) as aws:
        aws.kinesis.create_stream("orders", 1)
        put(aws, range(10))
        aws.kinesis.split("orders", FIRST)
        put(aws, range(10, 30))

        async def scenario() -> None:
            team = Team(quick(aws, "orders"))
            team.join("a")
            await team.wait_for_values(30)
            aws.kinesis.split("orders", "shardId-000000000001")  # while the stream is read
            put(aws, range(30, 60))
            await team.wait_for_values(60)
            await team.leave()
            assert set(team.counts.values()) == {1}
            assert team.values[:10] == [str(number) for number in range(10)]

        asyncio.run(scenario())


def test_a_merged_shard_waits_for_both_its_parents(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 2)
    put(aws, range(40))
    aws.kinesis.merge("orders", FIRST, "shardId-000000000001")
    put(aws, range(40, 60))

    async def scenario() -> None:
        team = Team(quick(aws, "orders"))
        for name in "ab":
            team.join(name)
        await team.wait_for_values(60)
        await team.leave()
        shards = [entry.shard for entry in team.handled]
        first_child = shards.index("shardId-000000000002")
        assert first_child == 40
        assert set(shards[first_child:]) == {"shardId-000000000002"}

    asyncio.run(scenario())


def test_latest_is_the_moment_when_the_group_began(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(5))
    aws.advance(1_000)

    async def scenario() -> None:
        streams = quick(aws, "orders", start="LATEST")
        team = Team(streams)
        team.join("a")
        await team.wait_for(lambda: aws.kinesis.calls.count("GetRecords") > 0)
        await team.leave()  # before a record is handled
        put(aws, range(10, 20))
        team.join("b")
        await team.wait_for_values(10)
        await team.leave()
        assert team.values == [str(number) for number in range(10, 20)]

    asyncio.run(scenario())


def test_shards_of_a_group_that_begins_late_are_read_from_their_beginning(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)

    async def scenario() -> None:
        team = Team(quick(aws, "orders", start="LATEST"))
        team.join("a")
        await team.wait_for(lambda: aws.kinesis.calls.count("GetRecords") > 0)
        aws.kinesis.split("orders", FIRST)
        put(aws, range(20))
        await team.wait_for_values(20)
        await team.leave()

    asyncio.run(scenario())


def test_a_stream_that_is_being_rescaled_is_read() -> None:
    with FakeAws(limits=Limits().unthrottled(), transition_ms=60_000) as aws:
        aws.kinesis.create_stream("orders", 1)
        aws.advance(60_000)
        put(aws, range(5))
        aws.kinesis.reshard("orders", 2)
        described = aws.kinesis.call("DescribeStreamSummary", StreamName="orders")
        assert described["StreamDescriptionSummary"]["StreamStatus"] == "UPDATING"

        async def scenario() -> None:
            team = Team(quick(aws, "orders"))
            team.join("a")
            await team.wait_for_values(5)
            await team.leave()

        asyncio.run(scenario())


def test_a_single_worker_reads_all_shards(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 6)
    put(aws, range(60))

    async def scenario() -> None:
        team = Team(quick(aws, "orders"))
        team.join("a")
        await team.wait_for_values(60)
        await team.leave()
        assert len(team.shards_of("a")) == 6

    asyncio.run(scenario())


def test_aggregates_are_divided_and_checkpointed_between_user_records(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    aggregate = Aggregate(1 << 20)
    for number in range(10):
        assert aggregate.add(f"key-{number}", None, b"%d" % number)
    aws.kinesis.put("orders", aggregate.encode(), "a")
    aws.kinesis.put("orders", b"plain", "b")

    async def scenario() -> None:
        team = Team(quick(aws, "orders"), retry=1)

        async def fail_at_six(entry: object) -> None:
            if len(team.handled) == 6 and not failed:
                failed.append(entry)
                raise ValueError("six")

        failed: list[object] = []
        team.before = fail_at_six
        hand = team.join("a")
        with pytest.raises(Exception, match="six"):
            await hand.task
        team.hands.clear()
        team.join("b")
        await team.wait_for_values(11)
        await team.leave()
        assert team.values == [*map(str, range(10)), "plain"]  # each value once

    asyncio.run(scenario())


def test_a_group_begins_at_a_time_or_behind_a_sequence_number(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 2)
    put(aws, range(10))
    chosen = aws.kinesis.put("orders", b"chosen", "key")
    aws.advance(60_000)
    moment = datetime.fromtimestamp(aws.clock.now_ms() / 1000, UTC)
    aws.advance(60_000)
    put(aws, range(10, 20))

    async def scenario() -> None:
        at_time = Team(quick(aws, "orders", start=moment))
        at_time.join("a")
        await at_time.wait_for_values(10)
        await at_time.leave()
        assert set(at_time.values) == {str(number) for number in range(10, 20)}
        behind = Team(quick(aws, "orders", start=f"AFTER:{chosen.sequence_number}"))
        behind.join("a")
        other = [r for r in aws.kinesis.records("orders") if r.sequence_number]
        expected = {
            record.data.decode()
            for shard in aws.kinesis.shards("orders")
            for record in aws.kinesis.records("orders", shard.name)
            if shard.name != chosen.shard
            or int(record.sequence_number) > int(chosen.sequence_number)
        }
        assert len(expected) < len(other)
        await behind.wait_for_values(len(expected))
        await behind.leave()
        assert set(behind.values) == expected

    asyncio.run(scenario())


def test_a_stream_is_named_by_its_arn_and_several_are_read_by_one_worker(aws: FakeAws) -> None:
    arn = aws.kinesis.create_stream("orders", 1)
    aws.kinesis.create_stream("returns", 1)
    put(aws, range(5))
    put(aws, range(5, 10), "returns")

    async def scenario() -> None:
        team = Team(quick(aws, arn, "returns"))
        team.join("a")
        await team.wait_for_values(10)
        await team.leave()
        assert {entry.stream for entry in team.handled} == {"orders", "returns"}

    asyncio.run(scenario())


def test_reading_ahead_is_bounded_and_a_slow_handler_loses_no_record(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    for number in range(60):
        aws.kinesis.put("orders", b"%03d" % number + b"x" * 50_000)

    async def scenario() -> None:
        team = Team(quick(aws, "orders", shard_bytes=300_000, worker_bytes=600_000))
        released = asyncio.Event()

        async def wait(_: object) -> None:
            await released.wait()

        team.before = wait
        hand = team.join("a")
        await team.wait_for(lambda: hand.app.counters["handle"].in_flight > 0)
        for number in range(60, 90):
            aws.kinesis.put("orders", b"%03d" % number + b"x" * 50_000)
        before = -1
        async with asyncio.timeout(15):  # until the reader waits for space
            while before != (asked := aws.kinesis.calls.count("GetRecords")):
                before = asked
                await asyncio.sleep(1.5)
        assert len(team.handled) == 0
        released.set()
        await team.wait_for_values(90)
        await team.leave()
        assert [value[:3] for value in team.values] == [f"{number:03d}" for number in range(90)]

    asyncio.run(scenario())


def test_a_record_of_ten_mebibytes_is_read(aws: FakeAws) -> None:
    arn = aws.kinesis.create_stream("orders", 1)
    aws.kinesis.call("UpdateMaxRecordSize", StreamARN=arn, MaxRecordSizeInKiB=10_240)
    aws.kinesis.put("orders", b"x" * (5 << 20))

    async def scenario() -> None:
        team = Team(quick(aws, "orders", leases=f"memory://{uuid.uuid4().hex}"))
        team.join("a")
        await team.wait_for_values(1)
        await team.leave()
        assert len(team.values[0]) == 5 << 20

    asyncio.run(scenario())


def test_records_are_pushed_by_fan_out(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 2)
    put(aws, range(10))

    async def scenario() -> None:
        team = Team(quick(aws, "orders", fan_out=True))
        team.join("a")
        await team.wait_for_values(10)
        aws.kinesis.split("orders", FIRST)
        put(aws, range(10, 30))
        await team.wait_for_values(30)
        await team.leave()
        assert aws.kinesis.calls.count("GetRecords") == 0
        assert set(team.counts.values()) == {1}

    asyncio.run(scenario())


def test_a_stalled_reader_is_restarted(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(5))

    async def scenario() -> None:
        team = Team(quick(aws, "orders", stall_ms=1_000))
        team.join("a")
        await team.wait_for_values(5)
        aws.kinesis.faults.on("GetRecords", delay(60), times=1)
        put(aws, range(5, 10))
        await team.wait_for_values(10)
        await team.leave()
        assert team.values == [str(number) for number in range(10)]
        assert len({entry.epoch for entry in team.handled}) == 1

    asyncio.run(scenario())


def test_a_slow_handler_does_not_count_as_a_stalled_reader(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(5))

    async def scenario() -> None:
        team = Team(quick(aws, "orders", stall_ms=800, shard_bytes=1, worker_bytes=1))

        async def slow(entry: Entry) -> None:
            if entry.value == "0":
                await asyncio.sleep(3)

        team.before = slow
        team.join("a")
        await team.wait_for_values(5)
        await team.leave()
        assert team.values == [str(number) for number in range(5)]
        assert len({entry.epoch for entry in team.handled}) == 1

    asyncio.run(scenario())
