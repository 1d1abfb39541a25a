"""Enhanced fan-out with the fake, which pushes events in the form of AWS."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.errors import ConfigError, KinesisError, StreamNotFoundError
from headrace.kinesis.aggregation.encoding import Aggregate
from headrace.kinesis.client.events import events_of
from headrace.kinesis.reading.fan_out import FanOutReader
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.registering import registered_consumer
from headrace.kinesis.reading.shards import StreamShards
from headrace.testing.kinesis import drop_connection, error, throttle
from tests.integration.kinesis.reading.harness import (
    FIRST,
    Lab,
    lab,
    read_to_end,
    read_until,
    values,
)
from tests.integration.kinesis.reading.test_shard_reader import numbered


async def subscriber(it: Lab, start: Checkpoint = TRIM_HORIZON, **options: Any) -> FanOutReader:
    arn = it.aws.kinesis.account.arn("orders")
    consumer = await registered_consumer(it.client, arn, "billing", timing=it.timing)
    return FanOutReader(it.client, arn, consumer, FIRST, start, timing=it.timing, **options)


def test_records_are_pushed_without_further_calls() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(3))
            reader = await subscriber(it)
            records = await read_until(reader, lambda all_: len(all_) == 3)
            it.put(*numbered(3, first=3))
            records += await read_until(reader, lambda all_: len(all_) == 3)
            assert values(records) == numbered(6)
            assert (records[0].stream, records[0].shard, records[0].timestamp_ms) == (
                "orders",
                FIRST,
                it.timing.now_ms(),
            )
            assert (it.count("SubscribeToShard"), it.count("GetRecords")) == (1, 0)
            await reader.aclose()

    asyncio.run(scenario())


def test_both_parsers_return_the_same_events() -> None:
    class Public:
        """An event stream with the documented methods only."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __aiter__(self) -> Any:
            return aiter(self.stream)

    async def scenario() -> None:
        async with lab() as it:
            it.put(b"", b"\x00\xff" * 1_000)
            it.aws.kinesis.split("orders", FIRST)
            arn = it.aws.kinesis.account.arn("orders")
            consumer = await registered_consumer(it.client, arn, "billing", timing=it.timing)
            events = []
            for wrapped in (Public, lambda stream: stream):
                it.aws.advance(6_000)
                answer = await it.client.subscribe_to_shard(
                    ConsumerARN=consumer, ShardId=FIRST, StartingPosition={"Type": "TRIM_HORIZON"}
                )
                events.append([event async for event in events_of(wrapped(answer["EventStream"]))])
            ours, theirs = events
            assert len(ours) == 1
            theirs[0].millis_behind_latest = ours[0].millis_behind_latest  # a while later
            assert ours == theirs
            assert [each.data for each in ours[0].records] == [b"", b"\x00\xff" * 1_000]
            assert len(ours[0].child_shards or ()) == 2

    asyncio.run(scenario())


def test_a_subscription_starts_at_every_kind_of_position() -> None:
    async def scenario() -> None:
        async with lab() as it:
            old = it.put(*numbered(3))
            it.aws.advance(5_000)
            since_ms = it.timing.now_ms()
            it.put(*numbered(3, first=3))
            starts = {TRIM_HORIZON: b"0", Checkpoint(old[1]): b"2", at_timestamp(since_ms): b"3"}
            for start, first in starts.items():
                reader = await subscriber(it, start)
                assert (await read_until(reader, bool))[0].data == first
                await reader.aclose()
                it.aws.advance(6_000)
            assert (await (await subscriber(it, SHARD_END)).fetch()).ended
            it.aws.advance(6_000)
            later_ms = it.timing.now_ms() + 3_000
            reader = await subscriber(it, at_timestamp(later_ms))
            await reader.fetch()
            assert it.timing.now_ms() >= later_ms
            await reader.aclose()

    asyncio.run(scenario())


def test_a_reader_subscribes_again_after_the_end_of_a_subscription() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(3))
            reader = await subscriber(it)
            records = await read_until(reader, lambda all_: len(all_) == 3)
            for _ in range(3):
                it.aws.advance(300_000)
                it.put(*numbered(1, first=len(records)))
                records += await read_until(reader, bool)
            assert values(records) == numbered(6)
            assert it.count("SubscribeToShard") == 4
            assert reader.counts.failures == 0
            await reader.aclose()

    asyncio.run(scenario())


def test_broken_connections_and_refusals_neither_lose_nor_repeat_a_record() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(3))
            reader = await subscriber(it)
            records: list[KinesisRecord] = await read_until(reader, lambda all_: len(all_) == 3)
            for action in (
                drop_connection(),
                throttle(),
                error("ResourceInUseException"),
                error("InternalFailure"),
            ):
                it.aws.kinesis.faults.on("SubscribeToShard", action, times=2)
                for subscription in it.aws.kinesis.account.consumers.values():
                    for each in subscription.subscriptions.values():
                        each.end()
                it.aws.kinesis.changed()
                it.put(*numbered(2, first=len(records)))
                records += await read_until(reader, lambda all_: len(all_) == 2)
            assert values(records) == numbered(11)
            assert reader.counts.throttled == 2
            assert reader.counts.failures >= 6
            await reader.aclose()

    asyncio.run(scenario())


def test_a_new_subscription_ends_the_subscription_of_another_reader() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(2))
            first = await subscriber(it)
            await read_until(first, lambda all_: len(all_) == 2)
            early = await subscriber(it)
            assert values(await read_until(early, lambda all_: len(all_) == 2)) == numbered(2)
            assert early.counts.failures > 0  # the call was five seconds too early
            it.aws.kinesis.faults.on("SubscribeToShard", error("AccessDeniedException"))
            with pytest.raises(KinesisError, match=r"by fan-out: .*permission"):
                await read_until(first, lambda _all: False)
            assert first.counts.failures == 2  # taken, and refused
            await early.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("shard_end", ["with_data", "extra_call"])
def test_a_closed_shard_ends_a_subscription_with_its_children(shard_end: str) -> None:
    async def scenario() -> None:
        async with lab(shard_end=shard_end) as it:
            it.put(*numbered(3))
            reader = await subscriber(it)
            records = (await reader.fetch()).records
            it.put(b"3")
            it.aws.kinesis.split("orders", FIRST)
            rest, last = await read_to_end(reader)
            assert values(records + rest) == numbered(4)
            assert [each.parents for each in last.children] == [{FIRST}, {FIRST}]
            assert (await reader.fetch()).ended

    asyncio.run(scenario())


def test_reading_continues_inside_an_aggregate() -> None:
    async def scenario() -> None:
        async with lab() as it:
            aggregate = Aggregate(1_000_000)
            for value in numbered(3):
                assert aggregate.add("k", None, value)
            it.put(b"plain", aggregate.encode(), b"last")
            reader = await subscriber(it)
            records = await read_until(reader, lambda all_: len(all_) == 5)
            assert values(records) == [b"plain", *numbered(3), b"last"]
            await reader.aclose()
            again = await subscriber(it, records[1].checkpoint)
            assert values(await read_until(again, lambda all_: len(all_) == 3)) == [
                b"1",
                b"2",
                b"last",
            ]
            await again.aclose()

    asyncio.run(scenario())


def test_expired_records_and_deleted_consumers_have_different_errors() -> None:
    async def scenario() -> None:
        async with lab() as it:
            reader = await subscriber(it)
            with it.aws.kinesis.faults.on("SubscribeToShard", error("ResourceNotFoundException")):
                fetched = await reader.fetch()
                assert (fetched.ended, fetched.data_expired) == (True, True)
            reader = await subscriber(it)
            arn = next(iter(it.aws.kinesis.account.consumers))
            it.aws.kinesis.call("DeregisterStreamConsumer", ConsumerARN=arn)
            with pytest.raises(KinesisError, match=r"looking for the consumer .*not found"):
                await reader.fetch()
            it.aws.kinesis.call("DeleteStream", StreamName="orders")
            with pytest.raises(StreamNotFoundError):
                await reader.fetch()

    asyncio.run(scenario())


def test_a_cancelled_fetch_of_fan_out_neither_loses_nor_repeats_a_record() -> None:
    async def scenario() -> None:
        async with lab() as it:
            reader = await subscriber(it)
            records: list[KinesisRecord] = []
            for number in range(4):
                waiting = asyncio.ensure_future(reader.fetch())
                for _ in range(30 * number):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait({waiting})
                if not waiting.cancelled():
                    records += waiting.result().records
                it.put(*numbered(1, first=number))
                if len(records) <= number:
                    records += await read_until(reader, bool)
            assert values(records) == numbered(4)
            await reader.aclose()

    asyncio.run(scenario())


def test_a_consumer_is_registered_once_for_all_members() -> None:
    async def scenario() -> None:
        async with lab(transition_ms=3_000) as it:
            it.aws.advance(3_000)
            arn = it.aws.kinesis.account.arn("orders")
            with pytest.raises(KinesisError, match="is not registered"):
                await registered_consumer(
                    it.client, arn, "billing", register=False, timing=it.timing
                )
            arns = await asyncio.gather(
                *[
                    registered_consumer(it.client, arn, "billing", timing=it.timing)
                    for _ in range(3)
                ]
            )
            assert len(set(arns)) == len(it.aws.kinesis.account.consumers) == 1
            assert (
                await registered_consumer(
                    it.client, arn, "billing", register=False, timing=it.timing
                )
                == arns[0]
            )
            it.aws.kinesis.faults.on(
                "RegisterStreamConsumer", error("LimitExceededException", "20 consumers")
            )
            with pytest.raises(
                KinesisError, match=r"registering the fan-out consumer more .*20 consumers"
            ):
                await registered_consumer(it.client, arn, "more", timing=it.timing)
            it.aws.kinesis.faults.on("DescribeStreamConsumer", error("UnrecognizedClientException"))
            with pytest.raises(ConfigError, match="does not know these credentials"):
                await registered_consumer(it.client, arn, "billing", timing=it.timing)

    asyncio.run(scenario())


def test_fan_out_does_not_read_a_stream_that_was_created_again() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(b"a")
            stream = (await StreamShards(it.client, "orders", timing=it.timing).describe()).stream
            reader = await subscriber(it, lease_stream=stream)
            await read_until(reader, lambda all_: len(all_) == 1)
            it.aws.kinesis.call("DeleteStream", StreamName="orders", EnforceConsumerDeletion=True)
            it.aws.advance(2_000)
            it.aws.kinesis.create_stream("orders", 1)
            with pytest.raises(StreamNotFoundError, match="orders was deleted and created again"):
                await reader.fetch()
            await reader.aclose()

    asyncio.run(scenario())
