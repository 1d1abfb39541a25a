"""The delivery of records inside the process. `tests/integration/kinesis` reads streams of fakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.core.lease.actions import Why
from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis import kinesis
from headrace.kinesis.group import member_shards
from headrace.kinesis.group.consumer import StreamConsumer
from headrace.kinesis.reading.reader import Fetched, ReadCounts

KEY = LeaseKey("g", "orders@1", "shardId-000000000000")


@pytest.mark.parametrize(
    ("fetched", "is_news"),
    [(Fetched(behind_ms=0), False), (Fetched(ended=True), True), (None, True)],
)
def test_a_fetch_without_records_does_not_wake_poll(
    fetched: Fetched | None, *, is_news: bool
) -> None:
    async def run() -> None:
        streams = kinesis("orders", region="eu-central-1", leases="memory://looks")
        consumer = StreamConsumer(streams, "g", durable=False, drain_timeout_s=1, owner="me")
        polling = asyncio.create_task(consumer.poll(60))
        await asyncio.sleep(0)
        consumer._shards.fetched(KEY, fetched)
        await asyncio.wait({polling}, timeout=0.05)
        assert polling.done() is is_news
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)

    asyncio.run(run())


class Unreadable:
    """Readers that can read nothing until the test allows it, and the member's notifications."""

    def __init__(self) -> None:
        self.is_readable = False
        self.opened = asyncio.Event()
        self.drained: list[LeaseKey] = []

    def open(self, _lease: Lease, _start: object) -> Any:
        if not self.is_readable:
            raise RuntimeError("no reader today")
        self.opened.set()
        return SimpleNamespace(
            fetch=self.fetch, aclose=self.aclose, behind_ms=None, counts=ReadCounts()
        )

    async def fetch(self, _space: object) -> Fetched:
        await asyncio.Event().wait()
        raise AssertionError

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def unreadable_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Unreadable, StreamConsumer]]:
    monkeypatch.setattr(member_shards, "UNREAD_MS", 1)
    harness = Unreadable()
    streams = kinesis("orders", region="eu-central-1", leases="memory://unreadable")
    consumer = StreamConsumer(streams, "g", durable=False, drain_timeout_s=1, owner="me")
    readers: Any = harness
    member: Any = SimpleNamespace(drained=harness.drained.append, close=harness.aclose)
    listener: Any = None
    consumer._member = member
    names = {"orders@1": "orders"}
    consumer._shards.begin(listener, member, readers, names=names, listers={})
    await consumer._shards.assigned(Lease(key=KEY, checkpoint=TRIM_HORIZON))
    try:
        yield harness, consumer
    finally:
        await consumer._shards.ahead.aclose()
        await consumer.leave(1)


def test_a_shard_that_cannot_be_read_is_reported_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with unreadable_shard(monkeypatch) as (harness, consumer):
            [line] = caplog.records
            message = (
                f"g: {KEY} cannot be read. Reading is retried until it works or another member owns the shard: "
                "no reader today"
            )
            assert (line.levelname, line.getMessage()) == ("ERROR", message)
            [status] = consumer.statuses({})
            assert (status.shard, status.error) == (KEY.shard, "no reader today")
            harness.is_readable = True
            async with asyncio.timeout(5):
                await harness.opened.wait()
            [status] = consumer.statuses({})
            assert (status.partition, status.lag_ms, status.error) == (0, None, None)
            assert [str(name) for name in consumer.positions()] == ["orders-0"]

    asyncio.run(run())


def test_a_shard_that_cannot_be_read_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with unreadable_shard(monkeypatch) as (harness, consumer):
            await consumer._shards.drain(KEY, Why.STALLED, None)
            assert harness.drained == [KEY]
            harness.is_readable = True
            async with asyncio.timeout(5):
                await asyncio.gather(*consumer._shards.tasks)  # opening is not retried
            assert not consumer.positions()

    asyncio.run(run())
