"""Aggregates of many small records: a reply is divided in parts, and no record is lost between the parts."""

from __future__ import annotations

import asyncio
from hashlib import md5
from typing import Any

import pytest

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.kinesis.aggregation.encoding import MAGIC
from headrace.kinesis.reading import unpacking
from headrace.kinesis.reading.reader import Fetched, ShardReader
from headrace.kinesis.reading.settings import ReadSettings

USERS = 100


def aggregate() -> bytes:
    message = b"\x0a\x01k" + b"\x1a\x04\x08\x00\x1a\x00" * USERS
    return MAGIC + message + md5(message, usedforsecurity=False).digest()


class Shard:
    """A client of a shard with some aggregates and a plain record between them."""

    def __init__(self) -> None:
        self.stored = [aggregate(), aggregate(), b"plain", aggregate(), aggregate(), b"last"]
        self.reads = 0
        self.starts: list[str | None] = []

    async def get_shard_iterator(self, **arguments: Any) -> dict[str, str]:
        self.starts.append(arguments.get("StartingSequenceNumber"))
        return {"ShardIterator": self.starts[-1] or "0"}

    async def get_records(self, **arguments: Any) -> dict[str, Any]:
        self.reads += 1
        first = int(arguments["ShardIterator"])
        records = [
            {"SequenceNumber": str(number), "Data": data, "PartitionKey": "k"}
            for number, data in enumerate(self.stored, 1)
            if number > first
        ]
        return {"Records": records, "MillisBehindLatest": 0}


class Instant:
    """A clock whose pauses take no time."""

    def now_ms(self) -> int:
        return 0

    def random(self) -> float:
        return 0.5

    async def sleep_ms(self, _pause_ms: float) -> None:
        return


def reader_of(shard: Shard) -> ShardReader:
    timing: Any = Instant()
    client: Any = shard
    return ShardReader(
        client, "s", "shardId-000000000000", TRIM_HORIZON, settings=ReadSettings(), timing=timing
    )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "AGGREGATES_BYTES", 2 * len(aggregate()))


def test_a_large_reply_is_divided_in_parts() -> None:
    shard = Shard()
    reader = reader_of(shard)

    async def read() -> list[Fetched]:
        found = [await reader.fetch()]
        while not found[-1].ended:
            found.append(await reader.fetch())
        return found

    parts = asyncio.run(read())
    assert [len(part.records) for part in parts] == [2 * USERS + 1, 2 * USERS + 1]
    assert [part.behind_ms for part in parts] == [1, 0], "what is at hand is behind, too"
    assert shard.reads == 1
    places = [(r.sequence_number, r.sub_sequence) for part in parts for r in part.records]
    assert len(set(places)) == len(places) == 4 * USERS + 2
    assert places == sorted(places, key=lambda place: (int(place[0]), place[1] or 0))
    assert sum(part.size_bytes for part in parts) == sum(len(each) + 1 for each in shard.stored)


def test_a_restart_between_two_parts_reads_the_second_part_again() -> None:
    shard = Shard()
    reader = reader_of(shard)

    async def read() -> Fetched:
        await reader.fetch()
        reader.restart()
        return await reader.fetch()

    part = asyncio.run(read())
    assert shard.starts == [None, "3"]
    assert [record.sequence_number for record in part.records] == ["4"] * USERS + ["5"] * USERS + [
        "6"
    ]


def test_one_aggregate_of_any_size_is_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "AGGREGATES_BYTES", 1)
    shard = Shard()
    part = asyncio.run(reader_of(shard).fetch())
    assert len(part.records) == USERS
    assert Checkpoint(part.records[-1].sequence_number) == Checkpoint("1")
