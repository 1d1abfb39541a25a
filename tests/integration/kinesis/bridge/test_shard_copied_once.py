"""A shard is copied exactly once, at whatever step a process is killed, and however long a paused process continues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.errors import ConfigError, HeadraceError, ProducerFencedError
from headrace.kinesis.bridge.positions import BridgePositions, TakeOver, claim_of
from headrace.kinesis.reading.reader import Fetched, Reader
from headrace.testing import Broker
from tests.integration.kinesis.bridge.harness import (
    SHARD,
    STREAM,
    Fuse,
    Killed,
    MemoryReader,
    Process,
    committed_records,
    records_of_shard,
)

RECORDS = records_of_shard(6)
KEY = LeaseKey("g", STREAM, SHARD)
Scenario = Callable[[Broker, str, int], Awaitable[Fuse]]


async def check(broker: Broker, topic: str) -> None:
    copied = await committed_records(broker, topic)
    assert [record.value for record in copied] == [record.data for record in RECORDS]
    first = copied[0]
    assert (first.key, first.timestamp_ms) == (b"key-0", RECORDS[0].timestamp_ms)
    assert dict(copied[5].headers) == {
        "kinesis.stream": b"orders",
        "kinesis.shard": SHARD.encode(),
        "kinesis.sequence": RECORDS[5].sequence_number.encode(),
        "kinesis.sub_sequence": b"2",
    }


async def killed(broker: Broker, topic: str, step: int) -> Fuse:
    """A process is killed at a step; another one is started."""
    broker.create_topic(topic)
    first = Process(broker, topic, RECORDS, Fuse(step))
    with contextlib.suppress(Killed):
        await first.run()
    second = Process(broker, topic, RECORDS, Fuse())
    assert await second.run()
    for process in (first, second):
        await process.bury()
    return first.fuse


async def held_up(broker: Broker, topic: str, step: int) -> Fuse:
    """(1) A process pauses at a step. (2) Another process copies the shard. (3) The first process continues."""
    broker.create_topic(topic)
    hold = asyncio.Event()
    first = Process(broker, topic, RECORDS, Fuse(step, hold=hold))
    running = asyncio.ensure_future(first.run())
    held = asyncio.ensure_future(first.fuse.held.wait())
    await asyncio.wait({running, held}, return_when=asyncio.FIRST_COMPLETED)
    second = Process(broker, topic, RECORDS, Fuse())
    assert await second.run()
    hold.set()
    with contextlib.suppress(ProducerFencedError):
        await running
    held.cancel()
    for process in (first, second):
        await process.bury()
    return first.fuse


@pytest.mark.parametrize("scenario", [killed, held_up])
def test_every_record_is_copied_once_wherever_a_process_ends(scenario: Scenario) -> None:
    async def main() -> None:
        with Broker() as broker:
            step = 0
            while True:
                topic = f"orders-{step}"
                fuse = await scenario(broker, topic, step)
                await check(broker, topic)
                if fuse.steps <= step:
                    break
                step += 1
            assert step > 15, "each step was one at which a process ended"

    asyncio.run(main())


class Forgetful(BridgePositions):
    """Break a rule: the position is not read behind the take-over."""

    async def take_over(self, producer, stream, shard, claim):
        before = self.known(stream).get(shard)
        taken = await super().take_over(producer, stream, shard, claim)
        return taken._replace(position=before)


class Unfenced(BridgePositions):
    """Break a rule: earlier producers are not fenced before positions are read."""

    async def take_over(self, producer, stream, shard, claim):
        async with self._reading:
            while await self._read():
                pass
        found = self.known(stream).get(shard)
        await producer.init_transactions()
        return TakeOver(found, [])


@pytest.mark.parametrize(
    ("broken", "noticed_by"), [(Forgetful, "held_up_between"), (Unfenced, "held_up")]
)
def test_these_tests_fail_without_the_steps_of_a_take_over(
    broken: type[BridgePositions], noticed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with Broker() as broker:
            scenario = {"held_up": held_up, "held_up_between": held_up_between}[noticed_by]
            await scenario(broker, "orders", 0)
            await check(broker, "orders")

    monkeypatch.setattr("tests.integration.kinesis.bridge.harness.BridgePositions", broken)
    with pytest.raises(AssertionError):
        asyncio.run(main())


async def held_up_between(broker: Broker, topic: str, step: int) -> Fuse:
    """(1) A process reads positions, and pauses. (2) Another process copies the shard. (3) The first takes over."""
    broker.create_topic(topic)
    first = Process(broker, topic, RECORDS, Fuse())
    await first.positions.open()
    second = Process(broker, topic, RECORDS, Fuse(15 + step))
    with contextlib.suppress(Killed):
        await second.run()
    assert await first.copy.run()
    for process in (first, second):
        await process.bury()
    return second.fuse


def test_a_paused_process_takes_no_shard_over_without_a_lease() -> None:
    async def main() -> None:
        with Broker() as broker:
            broker.create_topic("orders")
            hold = asyncio.Event()
            still = Process(broker, "orders", RECORDS, Fuse(8, hold=hold))
            running = asyncio.ensure_future(still.run())
            await still.fuse.held.wait()
            going = asyncio.Event()
            other = Process(broker, "orders", RECORDS, Fuse(15, hold=going))
            going_on = asyncio.ensure_future(other.run())
            await other.fuse.held.wait()
            still.leased = False
            hold.set()
            assert not await running
            assert len(still.producers) == 1, "it has not come back with another producer"
            going.set()
            assert await going_on
            assert len(other.producers) == 1, "it was left alone"
            await check(broker, "orders")
            for process in (still, other):
                await process.bury()

    asyncio.run(main())


def disturbed(process: Process, by: Process, lease: Lease) -> Callable[[], int]:
    """Let another process take the shard over before each read; return how often it did."""
    open_reader, count = process.copy._open_reader, 0

    class Disturbed(MemoryReader):
        async def fetch(self, space: object = None) -> Fetched:
            nonlocal count
            count += 1
            producer = by.copy._destination.producer(STREAM, SHARD)
            async with producer:
                await by.positions.take_over(producer, STREAM, SHARD, claim_of(lease))
            return await super().fetch()

    def opened(start: Checkpoint) -> Reader:
        if count >= 5:
            return open_reader(start)
        return Disturbed(process.records, start, process.fuse)

    process.copy._open_reader = opened
    return lambda: count


@pytest.mark.parametrize("rival", [Lease(key=KEY, checkpoint=TRIM_HORIZON, epoch=1, owner="b"),
                                   Lease(key=KEY, checkpoint=TRIM_HORIZON, epoch=2, owner="a")])  # fmt: skip
def test_a_paused_owner_is_fenced_each_time_and_continues(rival: Lease) -> None:
    mine = Lease(key=KEY, checkpoint=TRIM_HORIZON, epoch=2, owner="b")

    async def main() -> None:
        with Broker() as broker:
            broker.create_topic("orders")
            process = Process(broker, "orders", RECORDS, Fuse(), lease=mine)
            other = Process(broker, "orders", RECORDS, Fuse())
            await other.positions.open()
            count = disturbed(process, other, rival)
            assert await process.run()
            assert count() == 5
            await check(broker, "orders")
            for each in (process, other):
                await each.bury()

    asyncio.run(main())


@pytest.mark.parametrize(("epoch", "owner"), [(2, "c"), (3, "a")])
def test_a_greater_epoch_under_a_valid_lease_comes_from_another_store(
    epoch: int, owner: str
) -> None:
    mine = Lease(key=KEY, checkpoint=TRIM_HORIZON, epoch=2, owner="b")
    rival = Lease(key=KEY, checkpoint=TRIM_HORIZON, epoch=epoch, owner=owner)

    async def main() -> None:
        with Broker() as broker:
            broker.create_topic("orders")
            process = Process(broker, "orders", RECORDS, Fuse(), lease=mine)
            other = Process(broker, "orders", RECORDS, Fuse())
            await other.positions.open()
            count = disturbed(process, other, rival)
            with pytest.raises(ConfigError, match="another bridge of the name 'orders' has taken"):
                await process.run()
            assert count() == 1
            for each in (process, other):
                await each.bury()

    asyncio.run(main())


def test_a_shard_is_copied_after_brokers_removed_its_transactional_id() -> None:
    async def main() -> None:
        with Broker() as broker:
            broker.create_topic("orders", configs={"retention.ms": "-1"})
            process = Process(broker, "orders", RECORDS, Fuse())
            rests = iter([True, False, False, False])

            def committed(position: object, size: int) -> None:
                if next(rests):
                    broker.advance(30 * 24 * 3_600_000)

            process.copy._committed = committed
            assert await process.run()
            assert len(process.producers) == 2, "the first one was forgotten"
            await check(broker, "orders")
            await process.bury()

    asyncio.run(main())


def test_a_stopping_bridge_finishes_its_open_transaction() -> None:
    async def main() -> None:
        with Broker() as broker:
            broker.create_topic("orders")
            process = Process(broker, "orders", RECORDS, Fuse())
            await process.positions.open()
            process.copy._committed = lambda position, size: process.copy.stop()
            assert not await process.copy.run()
            assert len(await committed_records(broker, "orders")) == 2
            assert process.copy.position == RECORDS[1].checkpoint
            again = Process(broker, "orders", RECORDS, Fuse())
            assert await again.run()
            await check(broker, "orders")
            for each in (process, again):
                await each.bury()

    asyncio.run(main())


def test_the_error_for_a_too_large_record_names_the_setting_to_raise() -> None:
    async def main() -> None:
        with Broker() as broker:
            broker.create_topic("orders", configs={"max.message.bytes": "1000"})
            large = [RECORDS[0]._replace(data=bytes(2_000))]
            process = Process(broker, "orders", large, Fuse())
            with pytest.raises(HeadraceError, match=r"max\.message\.bytes=11534336"):
                await process.run()
            await process.bury()

    asyncio.run(main())


def test_a_bridge_stores_the_checkpoint_of_its_lease_as_its_first_position() -> None:
    async def main() -> None:
        with Broker() as broker:
            broker.create_topic("orders")
            process = Process(broker, "orders", RECORDS, Fuse())
            begins = RECORDS[1].checkpoint
            process.copy._lease = Lease(key=LeaseKey("g", STREAM, SHARD), checkpoint=begins)
            process.copy.stop()
            assert not await process.run()
            await process.bury()
            again = Process(broker, "orders", RECORDS, Fuse(4))
            with contextlib.suppress(Killed):
                await again.run()
            last = Process(broker, "orders", RECORDS, Fuse())
            assert await last.run()
            expected = RECORDS[2:] if process.copy.position else RECORDS
            assert [one.value for one in await committed_records(broker, "orders")] == [
                one.data for one in expected
            ]
            for each in (again, last):
                await each.bury()

    asyncio.run(main())
