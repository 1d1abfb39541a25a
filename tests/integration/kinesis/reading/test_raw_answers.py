"""Records decoded by our parser and by botocore's, over HTTP; and aggregates divided into user records."""

from __future__ import annotations

import asyncio
from functools import partial

from headrace.core.lease.lease import HashRange
from headrace.kinesis.aggregation.encoding import Aggregate
from headrace.kinesis.client.get_records import get_records, prepare
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.hash_keys import hash_key_of
from headrace.kinesis.reading.records import KinesisRecord
from tests.integration.kinesis.reading.harness import (
    FIRST,
    Lab,
    lab,
    read_to_end,
    read_until,
    values,
)
from tests.integration.kinesis.reading.test_shard_reader import numbered


async def iterator(it: Lab) -> str:
    answer = await it.client.get_shard_iterator(
        StreamName="orders", ShardId=FIRST, ShardIteratorType="TRIM_HORIZON"
    )
    token: str = answer["ShardIterator"]
    return token


def test_both_parsers_return_the_same_and_programs_still_get_dicts() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(b"", b"\x00\xff" * 1_000, "ключ".encode())
            it.aws.kinesis.split("orders", FIRST)
            arguments = {"ShardIterator": await iterator(it)}
            slow = await get_records(it.client, arguments)
            it.aws.advance(1_000)
            async with open_client(it.settings(), "kinesis") as client:
                prepare(client)
                prepare(client)
                fast = await get_records(client, arguments)
                it.aws.advance(1_000)
                plain = await client.get_records(**arguments)
            assert fast == slow
            assert [each.data for each in fast.records] == [
                b"",
                b"\x00\xff" * 1_000,
                "ключ".encode(),
            ]
            assert len(fast.child_shards or ()) == 2
            assert plain["Records"][1]["Data"] == b"\x00\xff" * 1_000
            assert plain["ResponseMetadata"]["HTTPStatusCode"] == 200

    asyncio.run(scenario())


def aggregate(keys: list[str]) -> bytes:
    together = Aggregate(1_000_000)
    for key in keys:
        assert together.add(key, None, key.encode())
    return together.encode()


def has(count: int, records: list[KinesisRecord]) -> bool:
    return len(records) == count


def test_reading_can_resume_at_every_record_of_aggregates_and_plain_records() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(b"before", aggregate(["a", "b", "c"]), b"between", aggregate(["d"]), b"after")
            whole = await read_until(it.reader(), lambda all_: len(all_) == 7)
            assert values(whole) == [b"before", b"a", b"b", b"c", b"between", b"d", b"after"]
            for number, record in enumerate(whole[:-1], 1):
                it.aws.advance(1_000)
                rest = await read_until(it.reader(record.checkpoint), partial(has, 7 - number))
                assert rest == whole[number:]
            it.aws.advance(1_000)
            raw = await read_until(it.reader(deaggregate=False), lambda all_: len(all_) == 5)
            assert raw[1].data == aggregate(["a", "b", "c"])

    asyncio.run(scenario())


def test_user_records_are_read_in_their_own_shard_only() -> None:
    """A producer with an old list of shards puts an aggregate while the stream is being split."""

    async def scenario() -> None:
        async with lab(2) as it:
            keys = [f"k{number}" for number in range(20)]
            data = aggregate(keys)
            it.put(data, shard=0)
            # Put again, because some of its records do not belong to the first shard.
            it.put(data, shard=1)
            it.aws.kinesis.reshard("orders", 4)
            seen = []
            for shard in it.aws.kinesis.shards("orders")[:2]:
                own = HashRange(*shard.hash_range)
                records, _ = await read_to_end(it.reader(shard=shard.name, hash_range=own))
                assert all(
                    own.first <= hash_key_of(each.partition_key) <= own.last for each in records
                )
                seen += records
            assert sorted(each.partition_key for each in seen) == sorted(keys)

    asyncio.run(scenario())


def test_an_aggregate_without_records_of_the_shard_does_not_stop_a_reader() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(aggregate(["a"]), *numbered(2))
            reader = it.reader(hash_range=HashRange(0, 0), max_records=1)
            assert values(await read_until(reader, lambda all_: len(all_) == 2)) == numbered(2)

    asyncio.run(scenario())
