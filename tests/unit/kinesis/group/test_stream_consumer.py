"""What a consumer of streams does at its own table; `tests/kinesis` has it read."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.lease.lease import LeaseKey
from headrace.kinesis import kinesis
from headrace.kinesis.group.consumer import StreamConsumer
from headrace.kinesis.reading.reader import Fetched

KEY = LeaseKey("g", "orders@1", "shardId-000000000000")


@pytest.mark.parametrize(
    ("fetched", "is_news"),
    [(Fetched(behind_ms=0), False), (Fetched(ended=True), True), (None, True)],
)
def test_a_look_at_a_shard_that_finds_nothing_wakes_nobody(
    fetched: Fetched | None, *, is_news: bool
) -> None:
    async def run() -> None:
        streams = kinesis("orders", region="eu-central-1", leases="memory://looks")
        consumer = StreamConsumer(streams, "g", durable=False, drain_timeout_s=1)
        polling = asyncio.create_task(consumer.poll(60))
        await asyncio.sleep(0)
        consumer._fetched(KEY, fetched)
        await asyncio.wait({polling}, timeout=0.05)
        assert polling.done() is is_news
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)

    asyncio.run(run())
