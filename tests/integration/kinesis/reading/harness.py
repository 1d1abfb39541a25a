"""A stream of the fake, a client, and a clock that moves during sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import HashRange
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsClient, AwsSettings
from headrace.kinesis.reading.reader import Fetched, Reader, ShardReader
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.settings import ReadSettings
from headrace.testing.kinesis import FakeAws, Limits

FIRST = "shardId-000000000000"


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def slew(self) -> int:
        return 0

    def advance_to(self, now_ms: int) -> None:
        self.time_ms = max(self.time_ms, now_ms)


class VirtualTiming:
    """Timing in which a sleep moves the fake's clock: hours pass at once, and the limits per second apply to them."""

    def __init__(self, aws: FakeAws) -> None:
        self.aws = aws
        self.slept_ms: list[float] = []

    def now_ms(self) -> int:
        return self.aws.clock.now_ms()

    def random(self) -> float:
        return 0.5

    async def sleep_ms(self, duration_ms: float) -> None:
        self.slept_ms.append(duration_ms)
        self.aws.advance(round(duration_ms))
        await asyncio.sleep(0)


@dataclass
class Lab:
    aws: FakeAws
    client: AwsClient
    timing: VirtualTiming

    def settings(self, **changes: Any) -> AwsSettings:
        return aws_settings(self.aws, **changes)

    def reader(
        self,
        start: Checkpoint = TRIM_HORIZON,
        shard: str = FIRST,
        *,
        stream: str = "orders",
        hash_range: HashRange | None = None,
        **settings: Any,
    ) -> ShardReader:
        return ShardReader(
            self.client,
            stream,
            shard,
            start,
            settings=ReadSettings(**settings),
            hash_range=hash_range,
            timing=self.timing,
        )

    def put(self, *values: bytes, shard: int = 0) -> list[str]:
        key = self.aws.kinesis.shards("orders")[shard].hash_range[0]
        return [
            self.aws.kinesis.put("orders", value, explicit_hash_key=key).sequence_number
            for value in values
        ]

    def count(self, operation: str, **which: Any) -> int:
        return self.aws.kinesis.calls.count(operation, **which)

    def throttled(self) -> int:
        return self.count("GetRecords", error="ProvisionedThroughputExceededException")


def aws_settings(aws: FakeAws, **changes: Any) -> AwsSettings:
    return AwsSettings(
        **{
            "region": aws.region,
            "endpoint_url": aws.endpoint_url,
            "access_key_id": "fake",
            "secret_access_key": "fake",
            **changes,
        }
    )


@asynccontextmanager
async def lab(
    shards: int = 1, *, limits: Limits | None = None, **options: Any
) -> AsyncIterator[Lab]:
    async with FakeAws(clock=ManualClock(), limits=limits, **options) as aws:
        if shards:
            aws.kinesis.create_stream("orders", shards)
        async with open_client(aws_settings(aws), "kinesis") as client:
            yield Lab(aws, client, VirtualTiming(aws))


async def read_until(
    reader: Reader, enough: Callable[[list[KinesisRecord]], bool]
) -> list[KinesisRecord]:
    """Fetch until the condition holds, or the shard ends."""
    records: list[KinesisRecord] = []
    while not enough(records):
        fetched = await reader.fetch()
        records += fetched.records
        if fetched.ended:
            break
    return records


async def read_to_end(reader: Reader) -> tuple[list[KinesisRecord], Fetched]:
    records: list[KinesisRecord] = []
    while not (fetched := await reader.fetch()).ended:
        records += fetched.records
    return records + fetched.records, fetched


def values(records: list[KinesisRecord]) -> list[bytes]:
    return [record.data for record in records]
