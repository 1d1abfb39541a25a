"""Readers on kinesis-local, an independent implementation: it checks the fake and Headrace's readers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.core.lease.lease import HashRange
from headrace.errors import StreamNotFoundError
from headrace.kinesis.client.get_records import get_records, prepare
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.reading.reader import ShardReader
from headrace.kinesis.reading.settings import ReadSettings
from headrace.kinesis.reading.shards import StreamShards
from tests.integration.kinesis.reading.harness import FIRST, read_to_end, read_until, values
from tests.integration.kinesis.reading.test_shard_reader import numbered
from tests.integration.kinesis.servers import run_on_stream

pytestmark = pytest.mark.slow
SECOND = "shardId-000000000001"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Stream:
    """A stream with a unique name on the shared server."""

    def __init__(self, client: AwsClient, name: str) -> None:
        self.client = client
        self.name = name

    def reader(self, start: Checkpoint = TRIM_HORIZON, shard: str = FIRST) -> ShardReader:
        return ShardReader(self.client, self.name, shard, start, settings=ReadSettings(poll_ms=200))

    async def put(self, *data: bytes, key: int = 0) -> list[str]:
        """Put records into the shard of a hash key, in order."""
        answers = [
            await self.client.put_record(
                StreamName=self.name, Data=each, PartitionKey="k", ExplicitHashKey=str(key)
            )
            for each in data
        ]
        return [answer["SequenceNumber"] for answer in answers]

    async def active(self) -> None:
        while (await StreamShards(self.client, self.name).describe()).status != "ACTIVE":
            pass  # each poll is a request over the network


def run(url: str, shards: int, scenario: Callable[[Stream], Awaitable[None]]) -> None:
    run_on_stream(url, shards, Stream, scenario)


def test_reading_kinesis_local_starts_at_every_kind_of_position(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        old = await it.put(*numbered(3))
        stored_ms = now_ms()
        while (since_ms := now_ms()) == stored_ms:
            pass
        await it.put(*numbered(3, first=3))
        for start, first in [
            (TRIM_HORIZON, 0),
            (Checkpoint(old[1]), 2),
            (at_timestamp(since_ms), 3),
        ]:
            reader = it.reader(start)
            assert (
                values(await read_until(reader, lambda all_: bool(all_) and all_[-1].data == b"5"))
                == numbered(6)[first:]
            )
        records = await read_until(it.reader(Checkpoint(old[1], 0)), lambda all_: len(all_) == 4)
        # For an aggregate this would be inside of it, and it would be read again.
        assert values(records) == numbered(6)[2:]

    run(kinesis_url, 1, scenario)


def test_a_split_and_a_merge_end_shards_with_their_children(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        await it.put(*numbered(2))
        await it.put(*numbered(2, first=2), key=1 << 127)
        before = await StreamShards(it.client, it.name).list_shards()
        assert [(each.shard, each.closed) for each in before] == [(FIRST, False), (SECOND, False)]
        middle = before[0].hash_range.last // 2 + 1
        await it.client.split_shard(
            StreamName=it.name, ShardToSplit=FIRST, NewStartingHashKey=str(middle)
        )
        await it.active()
        records, last = await read_to_end(it.reader())
        assert values(records) == numbered(2)
        assert [(each.shard, each.parents) for each in last.children] == [
            ("shardId-000000000002", frozenset({FIRST})),
            ("shardId-000000000003", frozenset({FIRST})),
        ]
        assert last.children[1].hash_range == HashRange(middle, before[0].hash_range.last)

        await it.client.merge_shards(
            StreamName=it.name, ShardToMerge="shardId-000000000003", AdjacentShardToMerge=SECOND
        )
        await it.active()
        records, last = await read_to_end(it.reader(shard=SECOND))
        assert values(records) == numbered(2, first=2)
        assert [(each.shard, each.parents) for each in last.children] == [
            ("shardId-000000000004", frozenset({SECOND, "shardId-000000000003"}))
        ]
        listed = {each.shard: each for each in await StreamShards(it.client, it.name).list_shards()}
        assert {name for name, each in listed.items() if each.closed} == {
            FIRST,
            SECOND,
            "shardId-000000000003",
        }
        child = listed["shardId-000000000004"]
        assert (child.parents, child.hash_range) == (
            last.children[0].parents,
            last.children[0].hash_range,
        )

    run(kinesis_url, 2, scenario)


def test_all_pages_of_shards_of_kinesis_local_are_listed(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        class Pages:
            """A client that requests pages of two shards."""

            async def list_shards(self, **arguments: Any) -> Any:
                return await it.client.list_shards(MaxResults=2, **arguments)

        listed = await StreamShards(Pages(), it.name).list_shards()  # type: ignore[arg-type] # it has what is called
        assert [each.shard for each in listed] == [f"shardId-{number:012d}" for number in range(5)]

    run(kinesis_url, 5, scenario)


def test_both_parsers_return_the_same_for_kinesis_local(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        await it.put(b"\x00\xff", "ключ".encode())
        answer = await it.client.get_shard_iterator(
            StreamName=it.name, ShardId=FIRST, ShardIteratorType="TRIM_HORIZON"
        )
        slow = await get_records(it.client, {"ShardIterator": answer["ShardIterator"]})
        prepare(it.client)
        fast = await get_records(it.client, {"ShardIterator": answer["ShardIterator"]})
        assert fast.records == slow.records
        assert [each.data for each in fast.records] == [b"\x00\xff", "ключ".encode()]
        assert fast.next_shard_iterator

    run(kinesis_url, 1, scenario)


def test_errors_name_the_missing_resource_on_kinesis_local(kinesis_url: str) -> None:
    async def scenario(it: Stream) -> None:
        with pytest.raises(StreamNotFoundError, match="no stream 'orderz'"):
            await StreamShards(it.client, "orderz").describe()
        gone = await it.reader(shard="shardId-000000000009").fetch()
        assert (gone.ended, gone.data_expired) == (True, True)

    run(kinesis_url, 1, scenario)
