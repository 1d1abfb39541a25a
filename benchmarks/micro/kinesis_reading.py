"""Measure the cost of a Kinesis record for its reader: `python -m benchmarks.micro.kinesis_reading`.

Another process answers each GetRecords with the same bytes, so all CPU time of this process is the client's.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.kinesis.aggregation.decoding import taken_apart
from headrace.kinesis.aggregation.encoding import Aggregate
from headrace.kinesis.client.get_records import get_records, prepare
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsClient, AwsSettings
from headrace.kinesis.reading.reader import ShardReader

ROUNDS = 12
Call = Callable[[], Awaitable[int]]


def answer(count: int, size: int) -> bytes:
    """Return the body of one GetRecords response."""
    records = [
        {
            "SequenceNumber": str(
                49_646_437_577_108_476_411_691_687_640_584_648_116_450_000_000_000_000_000 + number
            ),
            "ApproximateArrivalTimestamp": 1_790_000_000.123 + number,
            "Data": b64encode(os.urandom(size)).decode(),
            "PartitionKey": f"key-{number}",
            "EncryptionType": "KMS",
        }
        for number in range(count)
    ]
    return json.dumps(
        {"Records": records, "NextShardIterator": "A" * 200, "MillisBehindLatest": 60_000}
    ).encode()


def serve(pipe: Connection, body: bytes) -> None:
    """Answer every request with the same bytes, also the one GetShardIterator."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n"
    )

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await answers(reader, writer)
        writer.close()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                line
                for line in request.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            await reader.readexactly(int(length.split(b":")[1]))
            told = body if b"GetRecords" in request else b'{"ShardIterator":"x"}'
            writer.write(head % len(told) + told)
            await writer.drain()

    async def run() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


class Instant:
    """A clock and a source of randomness for clients that make no pauses."""

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def random(self) -> float:
        """Return one half as the random number."""
        return 0.5

    async def sleep_ms(self, duration_ms: float) -> None:
        """Return at once without a pause."""


async def cpu_us(call: Call) -> float:
    """Return the smallest CPU time of a call in several rounds."""
    await call()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        await call()
        best = min(best, time.process_time() - began)
    return best * 1e6


async def measured(body: bytes) -> tuple[float, float, float]:
    """Return the CPU time of a call: parsed by botocore, parsed by Headrace, and converted to records by Headrace."""
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs, body), daemon=True
    )
    process.start()
    try:
        settings = AwsSettings(
            region="eu-central-1",
            endpoint_url=f"http://127.0.0.1:{mine.recv()}",
            access_key_id="a",
            secret_access_key="b",
        )
        async with open_client(settings, "kinesis") as client:
            return await calls(client)
    finally:
        process.kill()
        process.join()


async def calls(client: AwsClient) -> tuple[float, float, float]:
    """Return the CPU time of a call in the three ways."""

    async def ours() -> int:
        return len((await get_records(client, {"ShardIterator": "x", "Limit": 10_000})).records)

    async def theirs() -> int:
        told: Any = await client.get_records(ShardIterator="x", Limit=10_000)
        return len(told["Records"])

    by_botocore = await cpu_us(theirs)
    prepare(client)
    by_us = await cpu_us(ours)
    reader = ShardReader(client, "orders", "shardId-0", TRIM_HORIZON, timing=Instant())

    async def fetch() -> int:
        return len((await reader.fetch()).records)

    return by_botocore, by_us, await cpu_us(fetch)


def main() -> None:
    """Print the rows of the tables in docs/guides/kinesis-reading.md."""
    empty = asyncio.run(measured(answer(0, 0)))
    print(
        f"a call without records, CPU ms: botocore {empty[0] / 1000:.2f}, ours {empty[1] / 1000:.2f}"
    )
    for count, size in ((2_000, 100), (2_000, 1_000), (200, 10_000)):
        times = asyncio.run(measured(answer(count, size)))
        rates = [count * 1e6 / each for each in times]
        cells = " | ".join(f"{rate:,.0f}" for rate in rates)
        print(
            f"| {size:,} bytes | {cells} | {rates[1] / rates[0]:.1f} times | {rates[2] / rates[0]:.1f} times |"
        )
    aggregate = Aggregate(1 << 20)
    count = 0
    while aggregate.add(f"key-{count % 100}", None, os.urandom(100)):
        count += 1
    data = aggregate.encode()
    best = min(_seconds(data) for _ in range(ROUNDS))
    print(f"aggregates of {count:,} records of 100 bytes: {count / best:,.0f} records a second")


def _seconds(data: bytes) -> float:
    began = time.process_time()
    taken_apart(data)
    return time.process_time() - began


if __name__ == "__main__":
    main()
