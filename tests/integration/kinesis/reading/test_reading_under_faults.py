"""Shards read to their ends with every fault: each record once and in order, also if another reader continues."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.kinesis.aggregation.encoding import Aggregate
from headrace.kinesis.reading.reader import ShardReader
from headrace.kinesis.reading.settings import ReadSettings
from headrace.testing.kinesis import FakeKinesis
from tests.integration.kinesis.reading.harness import FIRST, ManualClock

WRITES = 60
REFUSALS = [
    "ProvisionedThroughputExceededException", "InternalFailure", "KMSThrottlingException", "ExpiredIteratorException",
]  # fmt: skip


class Refused(Exception):  # noqa: N818 - it looks like botocore's
    def __init__(self, status: int, body: bytes) -> None:
        reported = json.loads(body)
        super().__init__(reported)
        code = reported["__type"].rpartition("#")[2]
        self.response = {
            "Error": {"Code": code, "Message": str(reported)},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


class Harness:
    """A stream that is written and resharded while it is read, with simulated losses of a network."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.clock = ManualClock()
        ending: Any = self.chance.choice(["with_data", "extra_call"])
        self.fake = FakeKinesis(clock=self.clock, shard_end=ending)
        self.fake.create_stream("orders", 1)
        self.written = 0
        self.expected: dict[str, list[bytes]] = {}
        self.read: dict[str, list[bytes]] = {}

    # The interface for readers: a client, a clock, random numbers

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        name = "".join(word.capitalize() for word in operation.split("_"))

        async def call(**arguments: Any) -> Any:
            self.happen()
            if self.chance.random() < 0.15:
                kind = self.chance.choice(REFUSALS[: 4 if name == "GetRecords" else 2])
                raise Refused(400, json.dumps({"__type": kind}).encode())
            reply = self.fake.handle(name, json.dumps(arguments).encode())
            if self.chance.random() < 0.1:
                raise ConnectionResetError("the answer is lost")
            if reply.status != 200:
                raise Refused(reply.status, reply.body)
            answer = json.loads(reply.body)
            for record in answer.get("Records", ()):
                record["Data"] = b64decode(record["Data"])
            return answer

        return call

    def now_ms(self) -> int:
        return self.clock.time_ms

    def random(self) -> float:
        return self.chance.random()

    async def sleep_ms(self, duration_ms: float) -> None:
        self.clock.time_ms += round(duration_ms)

    # Events during the reading

    def happen(self) -> None:
        if self.written < WRITES and self.chance.random() < 0.5:
            self.write()
        if self.chance.random() < 0.03:
            self.clock.time_ms += self.chance.randrange(600_000)
        if self.chance.random() < 0.03:
            self.fake.expire_iterators()
        if self.written < WRITES and self.chance.random() < 0.04:
            self.reshard()

    def write(self) -> None:
        for _ in range(self.chance.randrange(1, 5)):
            shard = self.chance.choice(self.fake.shards("orders", only_open=True))
            users = [
                b"%d" % (self.written + number) for number in range(self.chance.choice([1, 1, 3]))
            ]
            self.written += len(users)
            data = users[0]
            if len(users) > 1:
                aggregate = Aggregate(10_000)
                assert all(aggregate.add("k", None, user) for user in users)
                data = aggregate.encode()
            self.fake.put("orders", data, explicit_hash_key=shard.hash_range[0])
            self.expected.setdefault(shard.name, []).extend(users)

    def reshard(self) -> None:
        shards = self.fake.shards("orders", only_open=True)
        if len(shards) > 1 and self.chance.random() < 0.4:
            self.fake.merge("orders", shards[0].name, shards[1].name)
        else:
            self.fake.split("orders", self.chance.choice(shards).name)

    def is_all_read(self, shard: str) -> bool:
        read, expected = self.read.get(shard, []), self.expected.get(shard, [])
        is_open = shard in {each.name for each in self.fake.shards("orders", only_open=True)}
        return is_open and self.written >= WRITES and len(read) >= len(expected)


async def read_shard(simulation: Harness, shard: str) -> set[str]:
    """Read a shard to its end, or to its last record, with one reader after another; return its children."""
    position: Checkpoint = TRIM_HORIZON
    client: Any = simulation
    for _ in range(500):
        settings = ReadSettings(max_records=simulation.chance.choice([1, 2, 1_000]))
        reader = ShardReader(
            client, "orders", shard, position, settings=settings, timing=simulation
        )
        for _ in range(simulation.chance.randrange(1, 10)):
            if simulation.chance.random() < 0.1:
                reader.restart()
            fetched = await reader.fetch()
            finished = len(fetched.records)
            if simulation.chance.random() < 0.2:
                finished = simulation.chance.randrange(finished + 1)
            for record in fetched.records[:finished]:
                simulation.read.setdefault(shard, []).append(record.data)
                position = record.checkpoint
            if finished < len(fetched.records):
                break  # another member continues, wherever in a fetch or an aggregate this one stopped
            if fetched.ended:
                assert not fetched.data_expired
                return {child.shard for child in fetched.children}
            if simulation.is_all_read(shard):
                return set()
    raise AssertionError(f"{shard} has no end")


@pytest.mark.parametrize("seed", range(40))
def test_every_record_is_read_once_and_in_order(seed: int) -> None:
    async def scenario() -> None:
        simulation = Harness(seed)
        waiting, done = [FIRST], set[str]()
        while waiting:
            shard = waiting.pop()
            if shard not in done:
                done.add(shard)
                waiting += sorted(await read_shard(simulation, shard))
        assert simulation.read == simulation.expected
        assert done == {shard.name for shard in simulation.fake.shards("orders")}

    asyncio.run(scenario())
