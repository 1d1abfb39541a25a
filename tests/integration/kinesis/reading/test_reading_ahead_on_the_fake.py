"""Several shards read ahead from the fake, in real time."""

from __future__ import annotations

import asyncio
import time

from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.reading.prefetch import ReadAhead
from headrace.kinesis.reading.reader import ShardReader
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.settings import ReadSettings
from headrace.testing.kinesis import FakeAws
from tests.integration.kinesis.reading.harness import aws_settings, values
from tests.integration.kinesis.reading.test_shard_reader import numbered


def test_idle_shards_do_not_delay_a_busy_shard() -> None:
    async def scenario() -> None:
        async with FakeAws() as aws, open_client(aws_settings(aws), "kinesis") as client:
            aws.kinesis.create_stream("orders", 8)
            hot = aws.kinesis.shards("orders")[3]
            for value in numbered(500):
                aws.kinesis.put("orders", value, explicit_hash_key=hot.hash_range[0])
            settings = ReadSettings(max_records=100)
            ahead: ReadAhead[str] = ReadAhead(settings)
            began = time.monotonic()
            for shard in aws.kinesis.shards("orders"):
                ahead.add(
                    shard.name,
                    ShardReader(client, "orders", shard.name, TRIM_HORIZON, settings=settings),
                )
            records: list[KinesisRecord] = []
            while len(records) < 500:
                arrival = await ahead.next(30_000)
                assert arrival is not None
                records += arrival.fetched.records
            assert values(records) == numbered(500)
            took = time.monotonic() - began
            calls = [
                aws.kinesis.calls.count("GetRecords", shard=each.name)
                for each in aws.kinesis.shards("orders")
            ]
            assert calls[3] == 5
            assert max(calls[:3] + calls[4:]) <= took + 1
            await ahead.aclose()

    asyncio.run(scenario())


def test_a_pause_longer_than_an_iterators_lifetime_loses_no_record() -> None:
    async def scenario() -> None:
        async with FakeAws() as aws, open_client(aws_settings(aws), "kinesis") as client:
            aws.kinesis.create_stream("orders", 1)
            data = [bytes([number]) * 10_000 for number in range(60)]
            for value in data:
                aws.kinesis.put("orders", value)
            settings = ReadSettings(shard_bytes=100_000, max_records=5)
            ahead: ReadAhead[str] = ReadAhead(settings)
            reader = ShardReader(
                client, "orders", "shardId-000000000000", TRIM_HORIZON, settings=settings
            )
            ahead.add("only", reader)
            records: list[KinesisRecord] = []
            while len(records) < 60:
                if not len(records) % 15:
                    aws.advance(350_000)
                arrival = await ahead.next(30_000)
                assert arrival is not None
                assert ahead.held_bytes <= 100_000
                records += arrival.fetched.records
            assert values(records) == data
            assert aws.kinesis.calls.count("GetRecords", error="ExpiredIteratorException") > 0
            await ahead.aclose()

    asyncio.run(scenario())
