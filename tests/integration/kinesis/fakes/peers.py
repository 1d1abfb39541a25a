"""Two servers that answer the same probes: the fake, and an independent server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

Peer = TypeVar("Peer")

ONCE = AioConfig(retries={"total_max_attempts": 1})


@asynccontextmanager
async def client_of(service: str, url: str) -> AsyncIterator[Any]:
    """Return a client that sends each request once and does not check the answers."""
    options = {"region_name": "us-east-1", "aws_access_key_id": "d", "aws_secret_access_key": "d"}
    async with get_session().create_client(
        service, endpoint_url=url, config=ONCE, **options
    ) as client:
        yield client


async def outcome(request: Awaitable[Any]) -> str:
    """Return `ok`, or the type of the error."""
    try:
        await request
    except ClientError as error:
        return str(error.response["Error"]["Code"]).rpartition("#")[2]
    return "ok"


Answers = dict[str, Any]
"""The results of the probes by name; an exception where a probe failed."""

_AT_ONCE = 6


async def answers(
    service: str,
    url: str,
    peer: Callable[[Any], Peer],
    probes: Iterable[Callable[[Peer], Awaitable[Any]]],
) -> Answers:
    """Run probes against a server, several at the same time."""
    found: Answers = {}
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(probe: Any) -> None:
        async with turns:
            try:
                found[probe.__name__] = await probe(peer(client))
            except Exception as error:  # noqa: BLE001 - it is shown where the probe is compared
                found[probe.__name__] = error

    async with client_of(service, url) as client, asyncio.TaskGroup() as group:
        for probe in probes:
            group.create_task(ask(probe))
    return found


class KinesisPeer:
    """A Kinesis server, with the calls that several probes make."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def stream(self, shards: int = 1) -> str:
        """Create a stream, and return its name."""
        name = f"probe-{uuid.uuid4().hex[:12]}"
        await self.client.create_stream(StreamName=name, ShardCount=shards)
        await self.settled(name)
        return name

    async def settled(self, name: str) -> None:
        """Wait until a stream is ACTIVE."""
        while True:
            reported = await self.client.describe_stream_summary(StreamName=name)
            if reported["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE":
                return
            await asyncio.sleep(0.02)

    async def split(self, name: str, shard: str) -> None:
        """Split a shard in the middle."""
        (found,) = [each for each in await self.shards(name) if each["ShardId"] == shard]
        first, last = (int(edge) for edge in found["HashKeyRange"].values())
        await self.client.split_shard(
            StreamName=name, ShardToSplit=shard, NewStartingHashKey=str((first + last) // 2 + 1)
        )
        await self.settled(name)

    async def shards(self, name: str, **more: Any) -> list[dict[str, Any]]:
        """Return the shards of one page."""
        reported = await self.client.list_shards(StreamName=name, **more)
        return list(reported["Shards"])

    async def put(self, name: str, *datas: bytes) -> list[dict[str, Any]]:
        """Write records one by one, and return the reply to each."""
        return [
            await self.client.put_record(StreamName=name, Data=data, PartitionKey="key")
            for data in datas
        ]

    async def iterator(self, name: str, shard: str, kind: str = "TRIM_HORIZON", **more: Any) -> str:
        reported = await self.client.get_shard_iterator(
            StreamName=name, ShardId=shard, ShardIteratorType=kind, **more
        )
        return str(reported["ShardIterator"])

    async def read(self, name: str, shard: str, kind: str = "TRIM_HORIZON", **more: Any) -> Any:
        """Call GetRecords once, from a start position."""
        token = await self.iterator(name, shard, kind, **more)
        return await self.client.get_records(ShardIterator=token)
