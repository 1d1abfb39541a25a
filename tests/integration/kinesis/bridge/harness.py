"""A shard in memory, a broker in this process, and bridges that are killed or paused at any step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.clients.consumer.aio import Consumer
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.aio import Producer
from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.bridge.positions import BridgePositions
from headrace.kinesis.bridge.shard_copy import CopyProgress, Destination, ShardCopy
from headrace.kinesis.reading.reader import Fetched, ReadCounts
from headrace.kinesis.reading.records import KinesisRecord
from headrace.testing import Broker

STREAM = "orders@1700000000"
SHARD = "shardId-000000000000"


class Killed(BaseException):
    """The process is killed: none of its later steps is executed."""


class Fuse:
    """Kills or pauses a process before one of its steps."""

    def __init__(self, step: int | None = None, *, hold: asyncio.Event | None = None) -> None:
        self.step = step
        self.hold = hold
        self.held = asyncio.Event()
        self.steps = 0
        self.dead = False

    async def pass_by(self, act: Callable[[], Awaitable[Any]]) -> Any:
        if self.dead:
            raise Killed
        here = self.steps == self.step
        self.steps += 1
        if here:
            await self._burn()
        return await act()

    async def _burn(self) -> None:
        if self.hold is None:
            self.dead = True
            raise Killed
        self.held.set()
        await self.hold.wait()


class MortalProducer(Producer):
    """A producer of a process that can be killed at each call."""

    fuse: Fuse

    async def send(self, *arguments: Any, **options: Any) -> Any:
        return await self.fuse.pass_by(lambda: Producer.send(self, *arguments, **options))

    async def init_transactions(self, timeout_s: float | None = None) -> None:
        await self.fuse.pass_by(lambda: Producer.init_transactions(self, timeout_s))

    async def begin_transaction(self) -> None:
        await self.fuse.pass_by(lambda: Producer.begin_transaction(self))

    async def commit_transaction(self, timeout_s: float | None = None) -> None:
        await self.fuse.pass_by(lambda: Producer.commit_transaction(self, timeout_s))

    async def abort_transaction(self, timeout_s: float | None = None) -> None:
        await self.fuse.pass_by(lambda: Producer.abort_transaction(self, timeout_s))

    async def close(self, timeout_s: float | None = None) -> None:
        if self.fuse.dead:
            raise Killed
        await Producer.close(self, timeout_s)


class MemoryReader:
    """Reads records of a list, two at a time; the shard is closed."""

    def __init__(self, records: list[KinesisRecord], start: Checkpoint, fuse: Fuse) -> None:
        self._left = [record for record in records if start.is_before(record.checkpoint)]
        self._fuse = fuse
        self.counts = ReadCounts()

    async def fetch(self, space: Callable[[], int] | None = None) -> Fetched:
        fetched: Fetched = await self._fuse.pass_by(self._fetch)
        return fetched

    async def _fetch(self) -> Fetched:
        records, self._left = self._left[:2], self._left[2:]
        return Fetched(records=records, ended=not self._left, behind_ms=0)

    def restart(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


def records_of_shard(count: int) -> list[KinesisRecord]:
    """Return plain records, and user records of an aggregate, which share a sequence number."""
    records = []
    for number in range(count):
        sequence, sub = divmod(number, 3)
        aggregated = sequence % 2 == 1
        records.append(
            KinesisRecord(
                stream="orders",
                shard=SHARD,
                sequence_number=str(10**55 + (sequence * 10 + (0 if aggregated else sub))),
                sub_sequence=sub if aggregated else None,
                is_last_sub=not aggregated or sub == 2 or number == count - 1,
                partition_key=f"key-{number % 2}",
                explicit_hash_key=None,
                data=str(number).encode(),
                timestamp_ms=1_700_000_000_000 + number,
            )
        )
    return records


class Process:
    """One process that copies the shard."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        records: list[KinesisRecord],
        fuse: Fuse,
        *,
        lease: Lease | None = None,
    ) -> None:
        self.fuse = fuse
        self.records = records
        self.leased = True
        self.producers: list[MortalProducer] = []
        self.positions = BridgePositions(broker, topic, {}, 10)
        self.progress = CopyProgress()
        process = self

        class MortalDestination(Destination):
            def producer(self, stream: str, shard: str) -> Producer:
                producer = MortalProducer(
                    self.target, transactional_id=self.transactional_id(stream, shard), linger_ms=0
                )
                producer.fuse = fuse
                process.producers.append(producer)
                return producer

        self.copy = ShardCopy(
            MortalDestination(
                target=broker, topic=topic, name=topic, properties={}, positions=self.positions
            ),
            lease or Lease(key=LeaseKey("g", STREAM, SHARD), checkpoint=TRIM_HORIZON),
            lambda start: MemoryReader(records, start, fuse),
            self.progress,
            valid=lambda: self.leased,
            committed=lambda position, size: None,
            chance=random.Random(1).random,
        )

    async def run(self) -> bool:
        await self.positions.open()
        return await self.copy.run()

    async def bury(self) -> None:
        """Close the sockets of a killed process, without a request to the broker."""
        await self.positions.close()
        for producer in self.producers:
            await producer._driver.close()


async def committed_records(target: object, topic: str) -> list[ConsumerRecord]:
    """Return the records of a topic that are visible with isolation level read_committed."""
    reader = Consumer(
        target,  # type: ignore[arg-type]  # any that there is
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    found: list[ConsumerRecord] = []
    async with reader:
        places = await reader.partitions_for(topic)
        await reader.assign(places)
        await reader.seek_to_beginning()
        ends = await reader.end_offsets(places)
        for place in places:
            while await reader.position(place) < ends[place]:
                found += await reader.poll(0.1)
    return found
