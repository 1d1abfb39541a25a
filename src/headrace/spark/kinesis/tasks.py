"""The tasks of reads: which shards each reads, and how."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange
from headrace.errors import LeaseStoreError
from headrace.kinesis.client.streams import stream_name
from headrace.kinesis.leases.store import LeaseStore
from headrace.kinesis.reading.reader import ShardReader
from headrace.spark.kinesis.columns import raw_batch, row_batch
from headrace.spark.kinesis.connections import Connections, patiently, shared_connections
from headrace.spark.kinesis.offsets import End, round_name
from headrace.spark.kinesis.options import ReadOptions
from headrace.spark.kinesis.reading import PartBounds, ShardPart, is_caught_up, lost, wanted

TASK_BYTES: Final = 256 << 20
"""The most bytes of records that all shards of a task have in memory together."""
SHARDS_PER_TASK: Final = 8
"""The number of shards that one task reads in parallel. A shard delivers at most 2 MiB a second."""


@dataclass(frozen=True)
class ShardRead:
    """A shard that a task reads, and the position at which it starts."""

    stream: str
    """The stream's name or ARN."""
    shard: str
    start: Checkpoint
    hash_range: HashRange | None = None
    end_name: str = ""
    """The name in the store for the end of the shard's part of a round; empty in batch reads."""

    @property
    def name(self) -> str:
        return stream_name(self.stream)

    def __str__(self) -> str:
        return f"{self.shard} of {self.name}"


class RoundTask(InputPartition):
    """The shards of a round that one task reads."""

    def __init__(
        self,
        shards: Sequence[ShardRead],
        *,
        query: str,
        number: int,
        token: str,
        bounds: PartBounds,
    ) -> None:
        super().__init__(None)
        self.shards = tuple(shards)
        self.query = query
        self.number = number
        self.token = token
        self.bounds = bounds


class ShardTask(InputPartition):
    """The shards that one task of a batch read reads, up to a time."""

    def __init__(self, shards: Sequence[ShardRead], *, until_ms: int) -> None:
        super().__init__(None)
        self.shards = tuple(shards)
        self.until_ms = until_ms


def task_count(shards: int, max_tasks: int | None) -> int:
    """Return the number of tasks for a number of shards. A task costs Spark more than a shard."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max_tasks or max(cores or 1, -(-shards // SHARDS_PER_TASK))


def packed(shards: Sequence[ShardRead], count: int) -> list[list[ShardRead]]:
    """Distribute shards over at most `count` tasks."""
    count = min(count, len(shards))
    return [list(shards[number::count]) for number in range(count)]


def read_round(task: RoundTask, options: ReadOptions) -> Iterator[Any]:
    """Yield a task's rows as Arrow batches, shard by shard. A repeated task has the same rows.

    Raises:
        DataLossError: Records are gone, and `failOnDataLoss` is true.
        LeaseStoreError: The store is not the driver's store, or does not answer.
    """
    connections = shared_connections()
    for each, batches in zip(
        task.shards, connections.run(_read_parts(connections, task, options)), strict=True
    ):
        for raw in batches:
            yield row_batch(raw, each.name, each.shard, options)


async def _read_parts(
    connections: Connections, task: RoundTask, options: ReadOptions
) -> list[list[Any]]:
    assert options.store is not None
    store = await connections.store(options.store, options.aws)
    await _check_store(store, task, options.store)
    async with asyncio.TaskGroup() as group:
        reads = [
            group.create_task(_read_part(connections, store, task, each, options))
            for each in task.shards
        ]
    return [each.result() for each in reads]


async def _check_store(store: LeaseStore, task: RoundTask, text: str) -> None:
    """Check that the store has the round's token, which the driver has written."""
    name = round_name(task.number)
    found = await patiently(lambda: store.record_once(task.query, name, "?"))
    if found != task.token:
        raise LeaseStoreError(
            f"option store={text}: a task did not find there what the driver of the query wrote. Either round "
            f"{task.number} is finished and this task came too late, or it is another store: a file on another "
            "machine, a table in another region. Use a DynamoDB table, and set the option region"
        )


async def _read_part(
    connections: Connections,
    store: LeaseStore,
    task: RoundTask,
    each: ShardRead,
    options: ReadOptions,
) -> list[Any]:
    async def agree(end: End) -> str:
        return await patiently(lambda: store.record_once(task.query, each.end_name, end.to_text()))

    reader = await _reader(connections, each, options)
    try:
        part = ShardPart(str(each), each.start, task.bounds)
        return await part.read(reader, agree, fail_on_data_loss=options.fail_on_data_loss)
    finally:
        await reader.aclose()


async def _reader(connections: Connections, each: ShardRead, options: ReadOptions) -> ShardReader:
    return ShardReader(
        await connections.client(options.aws),
        each.stream,
        each.shard,
        each.start,
        settings=options.reading,
        hash_range=each.hash_range,
    )


def read_shards(task: ShardTask, options: ReadOptions) -> Iterator[Any]:
    """Yield the rows of a batch read as Arrow batches as they arrive, from all shards of the task in parallel."""
    connections = shared_connections()
    bounds = PartBounds(max_bytes=sys.maxsize, until_ms=task.until_ms)
    readers = {each: connections.run(_reader(connections, each, options)) for each in task.shards}
    fetches = {connections.start(reader.fetch()): each for each, reader in readers.items()}
    try:
        while fetches:
            done, _ = wait(fetches, return_when=FIRST_COMPLETED)
            for future in done:
                each, fetched = fetches.pop(future), connections.result(future)
                if fetched.data_expired:
                    lost(f"{each} was removed before it was read", fail=options.fail_on_data_loss)
                kept = wanted(fetched.records, bounds, 0, 0)
                over = fetched.ended or is_caught_up(fetched) or len(kept) < len(fetched.records)
                if not over:
                    fetches[connections.start(readers[each].fetch())] = each
                if kept:
                    yield row_batch(raw_batch(kept), each.name, each.shard, options)
    finally:
        for future in fetches:
            future.cancel()
        for reader in readers.values():
            connections.run(reader.aclose())
