"""Leases and checkpoints: defects of the published consumer that Headrace does not have."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.errors import ConfigError
from headrace.kinesis import AwsSettings
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.consumer import Consumer, Message
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.kinesis.leases.opening import open_store
from headrace.testing.kinesis import FakeAws, drop_connection, error, throttle
from tests.integration.kinesis.group.apps import fake_aws, quick, settings_of
from tests.integration.kinesis.group.collectors import Collector, stored
from tests.integration.kinesis.group.team import Entry, Team, until

FIRST = "shardId-000000000000"
TOO_OLD = "999999999999999999999999999999999999999999999999999999999"


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with fake_aws() as aws:
        yield aws


def put(aws: FakeAws, numbers: range, stream: str = "orders") -> None:
    for number in numbers:
        aws.kinesis.put(stream, b"%d" % number, f"key-{number}")


@pytest.mark.parametrize("kind", ["memory", "dynamodb"])
def test_a_row_is_created_once_and_never_reset(aws: FakeAws, kind: str) -> None:
    async def scenario() -> None:
        store = open_store(f"{kind}://{uuid.uuid4().hex}", settings_of(aws))
        await store.open()
        key = LeaseKey("billing", "orders@1", FIRST)
        fresh = Lease(key=key, checkpoint=TRIM_HORIZON)
        assert [await store.create(fresh) for _ in range(3)] == [True, False, False]
        taken = await store.take(fresh, "alice")
        assert taken is not None
        await store.renew(
            key, "alice", taken.epoch, 2, checkpoint=Checkpoint("49590338271490256608")
        )
        await store.create(fresh)
        [row] = await store.leases("billing", "orders@1")
        assert (row.owner, row.checkpoint.position) == ("alice", "49590338271490256608")
        await store.close()

    asyncio.run(scenario())


def test_two_processes_of_one_name_do_not_share_a_shard(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 2)
    put(aws, range(50))

    async def scenario() -> None:
        store = MemoryLeaseStore()
        both = [Collector(aws, store, owner="me-1") for _ in range(2)]
        tasks = [asyncio.create_task(one.run()) for one in both]
        await until(lambda: sum(len(one.processed) for one in both) >= 50)
        for one in both:
            one.stop()
        await asyncio.gather(*tasks)
        handled = both[0].processed + both[1].processed
        assert sorted(handled, key=int) == [str(number) for number in range(50)]

    asyncio.run(scenario())


def test_a_member_whose_clock_is_a_minute_ahead_takes_no_owned_lease(
    aws: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.kinesis.create_stream("orders", 1)

    async def scenario() -> None:
        store = MemoryLeaseStore()
        team = Team(quick(aws, "orders", leases=store))
        team.join("a")
        await team.wait_for(lambda: aws.kinesis.calls.count("GetRecords") > 0)
        [before] = await stored(store)
        monkeypatch.setattr("time.time_ns", lambda: 61_000_000_000 + 10**18)
        monkeypatch.setattr("time.time", lambda: 61.0 + 10**9)
        team.join("b")
        await asyncio.sleep(2)  # longer than a lease
        [after] = await stored(store)
        assert (after.owner, after.epoch) == (before.owner, before.epoch)
        await team.leave()

    asyncio.run(scenario())


def test_a_handler_that_runs_longer_than_a_lease_keeps_the_lease(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(3))

    async def scenario() -> None:
        team = Team(quick(aws, "orders", lease_duration_ms=1_000))

        async def slow(entry: Entry) -> None:
            if entry.value == "0":
                await asyncio.sleep(2.5)

        team.before = slow
        team.join("a")
        await team.wait_for(lambda: team.hands["a"].app.counters["handle"].in_flight > 0)
        team.join("b")
        await team.wait_for_values(3)
        await team.leave()
        assert team.values == ["0", "1", "2"]
        assert len({entry.epoch for entry in team.handled}) == 1 or team.values == ["0", "1", "2"]

    asyncio.run(scenario())


def test_sequence_numbers_are_compared_as_numbers() -> None:
    assert Checkpoint("9").is_before(Checkpoint("10"))
    assert not Checkpoint("10").is_before(Checkpoint("9"))
    assert Checkpoint("10", 3).is_before(Checkpoint("10", 12))


def test_a_checkpoint_may_be_repeated(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(3))

    async def scenario() -> None:
        async with Collector(aws, MemoryLeaseStore()) as consumer:
            while not (batch := await consumer.fetch()):
                pass
            for _ in range(3):
                assert await consumer.checkpoint(batch[0].id) is True
            assert await consumer.checkpoint(batch[-1].id) is True
            assert await consumer.checkpoint(batch[0].id) is True  # an earlier message
            # Not a message, but before all messages.
            assert await consumer.checkpoint(batch[0].id[:-1]) is True
            # Such a message was never fetched.
            assert await consumer.checkpoint(batch[0].id + "0") is False
            for wrong in ("", "7", "orders:1", f"{FIRST}:", f"{FIRST}:1:x", f"{FIRST}:-1"):
                with pytest.raises(ConfigError, match="is not the id of a message"):
                    await consumer.checkpoint(wrong)

    asyncio.run(scenario())


def test_a_lost_lease_is_reported_once_and_the_consumer_continues(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(3))

    async def scenario() -> None:
        store = MemoryLeaseStore()
        async with Collector(aws, store) as consumer:
            while not (batch := await consumer.fetch()):
                pass
            [lease] = await stored(store)
            assert await store.take(lease, "another-member") is not None
            assert await consumer.checkpoint(batch[-1].id) is False
            assert await consumer.checkpoint(batch[-1].id) is False
            again: list[Message] = []
            async with asyncio.timeout(15):  # the other owner never renews
                while not again:
                    again = await consumer.fetch()
            assert [message.payload for message in again] == [b"0", b"1", b"2"]
            await consumer.checkpoint(again[-1].id)

    asyncio.run(scenario())


def test_leases_of_several_groups_and_streams_share_a_table(aws: FakeAws) -> None:
    for stream in ("orders", "returns"):
        aws.kinesis.create_stream(stream, 1)
        put(aws, range(20), stream)

    async def scenario() -> None:
        teams = []
        for group, stream in (("g1", "orders"), ("g2", "returns"), ("g2", "orders")):
            streams = quick(aws, stream, leases="dynamodb://leases")
            teams.append(Team(streams, group=group))
            teams[-1].join("a")
        for team in teams:
            await team.wait_for_values(20)
        for team in teams:
            await team.leave()
            assert set(team.counts.values()) == {1}

    asyncio.run(scenario())


def test_a_member_keeps_its_lease_when_the_answer_to_a_write_is_lost(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)

    async def scenario() -> None:
        team = Team(quick(aws, "orders", leases="dynamodb://leases"))
        team.join("a")
        await team.wait_for(lambda: aws.kinesis.calls.count("GetRecords") > 0)
        aws.dynamodb.faults.on("UpdateItem", drop_connection(handled=True), times=2)
        put(aws, range(30))
        await team.wait_for_values(30)
        before = aws.dynamodb.calls.count("UpdateItem")
        await team.wait_for(lambda: aws.dynamodb.calls.count("UpdateItem") > before + 3)
        assert not team.hands["a"].task.done()
        await team.leave()
        assert set(team.counts.values()) == {1}
        assert len({entry.epoch for entry in team.handled}) == 1

    asyncio.run(scenario())


def test_clean_may_be_repeated_and_releases_the_lease(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(3))

    async def scenario() -> None:
        store = MemoryLeaseStore()
        consumer = Collector(aws, store)
        while not (batch := await consumer.fetch()):
            pass
        await consumer.checkpoint(batch[-1].id)
        [held] = await stored(store)
        await consumer.clean()
        await consumer.clean()
        [free] = await stored(store)
        assert (free.owner, free.epoch) == (None, held.epoch + 1)
        assert free.checkpoint.position == batch[-1].id.split(":")[1]

    asyncio.run(scenario())


@pytest.mark.parametrize("in_a_task", [False, True])
def test_process_batch_may_call_clean(aws: FakeAws, *, in_a_task: bool) -> None:
    """`run` ends after the batch, so a batch that calls `clean` cannot wait for `run`."""
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(3))

    class Last(Collector):
        async def process_batch(self, batch: list[Message]) -> None:
            await super().process_batch(batch)
            assert await self.checkpoint(batch[-1].id)
            await (asyncio.create_task(self.clean()) if in_a_task else self.clean())

    async def scenario() -> None:
        store = MemoryLeaseStore()
        consumer = Last(aws, store)
        await asyncio.wait_for(consumer.run(), 20)
        [lease] = await stored(store)
        assert (lease.owner, bool(consumer.processed)) == (None, True)
        assert lease.checkpoint != TRIM_HORIZON

    asyncio.run(scenario())


def test_a_cancelled_run_ends_its_batch_and_releases_the_lease(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(3))

    class Slow(Collector):
        async def process_batch(self, batch: list[Message]) -> None:
            await super().process_batch(batch)
            await asyncio.sleep(60)

    async def scenario() -> None:
        store = MemoryLeaseStore()
        consumer = Slow(aws, store)
        run = asyncio.create_task(consumer.run())
        await until(lambda: bool(consumer.processed))
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, 10)
        [lease] = await stored(store)
        # The batch is delivered again.
        assert (lease.owner, lease.checkpoint) == (
            None,
            TRIM_HORIZON,
        )

    asyncio.run(scenario())


def test_an_error_of_a_batch_ends_the_run_and_the_batch_is_delivered_again(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(3))

    class Broken(Collector):
        async def process_batch(self, batch: list[Message]) -> None:
            raise ValueError("broken")

    async def scenario() -> None:
        store = MemoryLeaseStore()
        with pytest.raises(ValueError, match="broken"):
            await asyncio.wait_for(Broken(aws, store).run(), 10)
        second = Collector(aws, store)
        run = asyncio.create_task(second.run())
        await until(lambda: len(second.processed) == 3)
        second.stop()
        await run

    asyncio.run(scenario())


def test_a_checkpoint_resets_the_number_of_owner_changes(aws: FakeAws) -> None:
    async def scenario() -> None:
        store = MemoryLeaseStore()
        key = LeaseKey("billing", "orders@1", FIRST)
        seen = Lease(key=key, checkpoint=TRIM_HORIZON)
        await store.create(seen)
        for owner in ("a", "b"):
            taken = await store.take(seen, owner)
            assert taken is not None
            seen = taken
        assert seen.switches == 2
        written = await store.renew(key, "b", seen.epoch, seen.beat + 1, checkpoint=Checkpoint("7"))
        assert written is not None
        assert written.switches == 0

    asyncio.run(scenario())


def test_a_joining_member_gets_its_share_and_no_record_is_handled_twice(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 4)

    async def scenario() -> None:
        team = Team(quick(aws, "orders"))
        team.join("a")
        put(aws, range(40))
        await team.wait_for_values(40)
        team.join("b")
        number = 40

        def balanced() -> bool:
            nonlocal number
            put(aws, range(number, number + 4))
            number += 4
            return len(team.shards_of("b")) == 2

        await team.wait_for(balanced)
        await team.wait_for_values(number)
        await team.leave()
        assert set(team.counts.values()) == {1}

    asyncio.run(scenario())


def test_a_scan_costs_one_query_for_any_number_of_shards(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 10)

    async def scenario() -> None:
        team = Team(quick(aws, "orders", leases="dynamodb://leases", scan_ms=500))
        for name in "ab":  # a member that owns all shards does not scan
            team.join(name)
        await team.wait_for(lambda: aws.kinesis.calls.count("GetRecords") >= 10)
        aws.dynamodb.calls.clear()
        aws.kinesis.calls.clear()
        await team.wait_for(lambda: aws.dynamodb.calls.count("Query") >= 4)
        assert aws.dynamodb.calls.count("GetItem") == 0
        assert aws.kinesis.calls.count("DescribeStream") == 0
        assert aws.kinesis.calls.count("DescribeStreamSummary") == 0
        await team.leave()

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", [throttle, lambda: error("InternalServerError")])
def test_a_short_outage_of_the_store_changes_no_owner(
    aws: FakeAws, fault: Callable[[], Any]
) -> None:
    aws.kinesis.create_stream("orders", 1)

    async def scenario() -> None:
        team = Team(quick(aws, "orders", leases="dynamodb://leases", lease_duration_ms=3_000))
        team.join("a")
        await team.wait_for(lambda: aws.kinesis.calls.count("GetRecords") > 0)
        with aws.dynamodb.faults.on(None, fault(), times=3):
            put(aws, range(10))
            await team.wait_for_values(10)
        put(aws, range(10, 20))
        await team.wait_for_values(20)
        await team.leave()
        assert set(team.counts.values()) == {1}
        assert len({entry.epoch for entry in team.handled}) == 1

    asyncio.run(scenario())


def test_the_end_of_a_shard_is_stored(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(10))
    aws.kinesis.split("orders", FIRST)

    async def handled_by_one(store: MemoryLeaseStore) -> list[str]:
        team = Team(quick(aws, "orders", leases=store))
        hand = team.join("a")

        def is_over() -> bool:
            rows = {key.shard: row.checkpoint for key, row in store._rows.leases.items()}
            held = sum(len(worker._source.positions()) for worker in hand.service.workers)
            return rows.get(FIRST) == SHARD_END and held == 2

        await team.wait_for(is_over)
        await team.leave()
        return team.values

    async def scenario() -> None:
        store = MemoryLeaseStore()
        assert await handled_by_one(store) == [str(number) for number in range(10)]
        assert await handled_by_one(store) == []  # no record is left

    asyncio.run(scenario())


def test_passed_clients_are_used_and_not_closed(aws: FakeAws) -> None:
    aws.kinesis.create_stream("orders", 1)
    put(aws, range(3))

    async def scenario() -> None:
        settings: AwsSettings = settings_of(aws)
        async with (
            open_client(settings, "kinesis") as streams,
            open_client(settings, "dynamodb") as tables,
        ):
            consumer = Consumer(
                "orders",
                "billing",
                initial_checkpoint="TRIM_HORIZON",
                kinesis=streams,
                dynamodb=tables,
                table="leases",
                poll_ms=200,
            )
            async with consumer:
                while not (batch := await consumer.fetch()):
                    pass
                await consumer.checkpoint(batch[-1].id)
            await streams.list_streams()
            await tables.list_tables()
        first = batch[0]
        assert (first.payload, first.stream, first.shard_id, first.partition_key) == (
            b"0",
            "orders",
            FIRST,
            "key-0",
        )
        assert timedelta(0) <= datetime.now(UTC) - first.ts_server < timedelta(minutes=1)

    asyncio.run(scenario())
