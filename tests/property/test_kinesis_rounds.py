"""Rounds of Spark's reads of a shard: copies of a task interleave, die or come late, and records arrive meanwhile.

All copies of a task that complete have the same rows, and the rows of all rounds together are the shard.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.kinesis.reading.reader import Fetched
from headrace.kinesis.reading.records import KinesisRecord
from headrace.spark.kinesis.offsets import End, parse_end
from headrace.spark.kinesis.reading import PartBounds, ShardPart

SEEDS = 100
SHARD = "shardId-000000000000"


@coroutine
def turn() -> Generator[None]:
    """Let another copy of the task continue."""
    yield


class Harness:
    """A shard that grows, a store, and time."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.records: list[KinesisRecord] = []
        self.closed = False
        self.now_ms = 1_000
        self.stored: dict[str, str] = {}
        self.number = 0

    def grow(self) -> None:
        for _ in range(self.chance.randrange(6)):
            self.number += self.chance.randrange(1, 5)
            self.now_ms += self.chance.randrange(3)
            subs = self.chance.choice([1, 1, 1, 3])
            self.records += [
                KinesisRecord(
                    "flights",
                    SHARD,
                    str(self.number),
                    None if subs == 1 else sub,
                    sub == subs - 1,
                    "key",
                    None,
                    b"%d.%d" % (self.number, sub),
                    self.now_ms,
                )
                for sub in range(subs)
            ]

    async def record_once(self, name: str, value: str) -> str:
        await turn()
        there = self.stored.setdefault(name, value)
        await turn()
        return there


class Reader:
    """Returns a part of the shard for each read, as Kinesis does; sometimes an empty part before the end."""

    def __init__(self, harness: Harness, start: Checkpoint) -> None:
        self.harness = harness
        self.after = int(start.position) if start.is_sequence_number else 0

    async def fetch(self, _room: object = None) -> Fetched:
        await turn()
        harness = self.harness
        left = [each for each in harness.records if int(each.sequence_number) > self.after]
        most = harness.chance.choice([0, 1, 3, 100])
        numbers = sorted({int(each.sequence_number) for each in left})[:most]
        taken = [each for each in left if int(each.sequence_number) in numbers]
        self.after = numbers[-1] if numbers else self.after
        rest = len(taken) < len(left)
        return Fetched(
            records=taken,
            ended=harness.closed and not rest,
            behind_ms=5 if rest else 0,
            size_bytes=10 * len(taken),
        )


def rows(batches: list[Any]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("data").to_pylist()]


async def read(harness: Harness, number: int, start: Checkpoint, bounds: PartBounds) -> list[bytes]:
    async def agree(end: End) -> str:
        return await harness.record_once(str(number), end.to_text())

    part = ShardPart(SHARD, start, bounds, clock=lambda: harness.now_ms)
    reader: Any = Reader(harness, start)  # the methods of a reader that a part uses
    return rows(await part.read(reader, agree, fail_on_data_loss=True))


def some_bounds(chance: random.Random, number: int, until_ms: int | None) -> PartBounds:
    """Return the limits of a copy. The limits of late rounds are wide, so that a run ends."""
    if number > 6:
        return PartBounds(max_bytes=1000)
    return PartBounds(chance.choice([1, 30, 1000]), chance.choice([None, 1, 4]), until_ms)


def interleave(
    harness: Harness, copies: list[Coroutine[Any, Any, list[bytes]]]
) -> list[list[bytes]]:
    """Run copies of a task step by step; some die, but not all."""
    done: list[list[bytes]] = []
    alive = list(copies)
    while alive:
        one = harness.chance.choice(alive)
        if harness.chance.random() < 0.05 and (len(alive) > 1 or done):
            one.close()
            alive.remove(one)
            continue
        if harness.chance.random() < 0.2 and not harness.closed:
            harness.grow()
        try:
            one.send(None)
        except StopIteration as stop:
            done.append(stop.value)
            alive.remove(one)
    return done


def test_every_read_of_a_round_has_the_same_rows_and_rounds_are_the_shard() -> None:
    for seed in range(SEEDS):
        chance = random.Random(seed)
        harness = Harness(chance)
        start, found = TRIM_HORIZON, []
        number = 0
        while not start.is_end:
            harness.closed = number >= 6
            # All copies of a task have the same plan; a restart may have changed the limits.
            until_ms = chance.choice([None, harness.now_ms]) if number < 6 else None
            copies = [
                read(harness, number, start, some_bounds(chance, number, until_ms))
                for _ in range(chance.randrange(1, 4))
            ]
            reads = interleave(harness, copies)
            last = read(harness, number, start, some_bounds(chance, number, until_ms))
            reads += interleave(harness, [last])
            assert all(each == reads[0] for each in reads), f"seed {seed}, round {number}"
            found += reads[0]
            end = parse_end(harness.stored[str(number)])
            assert end.rows == len(reads[0]), f"seed {seed}, round {number}"
            start = end.continuation.checkpoint
            number += 1
            assert number < 60, f"seed {seed} comes to no end"
        assert found == [each.data for each in harness.records], f"seed {seed}"
