"""Batch reads of Kinesis streams: `spark.read.format("headrace-kinesis")`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.kinesis.client.backoff import FIRST_CONTACT_MS
from headrace.kinesis.reading.shards import StreamShards
from headrace.spark.errors import short_tracebacks
from headrace.spark.kinesis.connections import Connections, shared_connections
from headrace.spark.kinesis.lineage import initial
from headrace.spark.kinesis.offsets import Shards
from headrace.spark.kinesis.options import ReadOptions
from headrace.spark.kinesis.tasks import ShardRead, ShardTask, packed, read_shards, task_count


@short_tracebacks
class KinesisBatchReader(DataSourceReader):
    """Reads all shards up to the time of planning or `endingTimestamp`.

    Rows of a shard are in order. Parent and child shards are read in parallel.
    """

    def __init__(self, options: ReadOptions) -> None:
        """Take the options. No request is sent yet."""
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks of the read."""
        connections = shared_connections()
        return connections.run(_plan(connections, self._options))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's records as Arrow batches."""
        # Spark turns an empty list of tasks into one partition without content.
        if not isinstance(partition, ShardTask):
            return iter(())
        return read_shards(partition, self._options)


async def _plan(connections: Connections, options: ReadOptions) -> list[InputPartition]:
    now_ms = time.time_ns() // 1_000_000
    reads: list[ShardRead] = []
    for stream, starting in options.streams.items():
        shards = StreamShards(await connections.client(options.aws), stream)
        await shards.describe(answer_within_ms=FIRST_CONTACT_MS)
        infos = await shards.list_shards()
        begin = initial(infos, starting, now_ms)
        reads += [
            ShardRead(stream, info.shard, _start(begin, info.shard), info.hash_range)
            for info in infos
            if info.shard not in begin.done
        ]
    until_ms = now_ms if options.ending_ms is None else options.ending_ms
    return [
        ShardTask(each, until_ms=until_ms)
        for each in packed(reads, task_count(len(reads), options.max_tasks))
    ]


def _start(begin: Shards, shard: str) -> Checkpoint:
    if shard in begin.active:
        return begin.active[shard].checkpoint
    return begin.waiting.get(shard, TRIM_HORIZON)
