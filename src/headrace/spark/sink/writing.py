"""The tasks' and the driver's part of a write, for batch and streaming writes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError
from headrace.spark.client.contact import FIRST_CONTACT_S, STREAM_CONTACT_S
from headrace.spark.options.sink import SinkOptions, WriteId
from headrace.spark.sink.cluster import check_cluster, open_cluster
from headrace.spark.sink.columns import check_columns, columns_of, content_size, rows_by_topic
from headrace.spark.sink.exactly_once import (
    PartitionWrite,
    RowBatch,
    abort_batch,
    commit_batch,
    write_partition,
)
from headrace.spark.worker import freeze_imports

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
"""The names of the batch id and the query id among the local properties of a stream's tasks."""


@dataclass
class TopicRowsWritten(WriterCommitMessage):
    """The result of one task: the number of rows and, for exactly-once writes, the report for the driver."""

    records: int
    write: PartitionWrite | None = None


class TopicRowWriter:
    """Writes rows by the options of the write. Spark pickles it for the tasks, so it has no connection of its own."""

    def __init__(self, options: SinkOptions, schema: StructType, *, streaming: bool) -> None:
        """Check columns and topics before a job starts.

        Raises:
            ConfigError: The columns cannot be written, or a topic is missing.
        """
        freeze_imports()
        check_columns(columns_of(schema), options)
        check_cluster(options, STREAM_CONTACT_S if streaming else FIRST_CONTACT_S)
        self._options = options
        self._streaming = streaming

    def write(self, batches: Iterator[Any]) -> WriterCommitMessage:
        """Write one task's rows.

        They are acknowledged when this returns. An exactly-once write is not committed yet.
        """
        freeze_imports()
        rows = self._rows(batches)
        cluster = open_cluster(self._options)
        if self._options.exactly_once:
            context = _task_context()
            once = self._options.transaction or _once_of_stream(self._options.name, context)
            write = write_partition(cluster, once, context.partitionId(), rows)
            return TopicRowsWritten(write.records, write)
        written = 0
        with cluster.new_producer(None) as producer:
            for batch in rows:
                for each in batch.records():
                    producer.send_rows(each)
                written += batch.count
        return TopicRowsWritten(written)

    def _rows(self, batches: Iterator[Any]) -> Iterator[RowBatch]:
        for batch in batches:
            now_ms = time.time_ns() // 1_000_000
            records = partial(rows_by_topic, batch, self._options.topic, now_ms)
            yield RowBatch(batch.num_rows, records, content_size(batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the open transactions of the tasks."""
        writes = _writes(messages)
        if writes:
            commit_batch(
                open_cluster(self._options),
                writes,
                streaming=self._streaming,
                fail_on_lost_marker=self._options.fail_on_lost_marker,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the open transactions of the tasks. Failed tasks have aborted their own."""
        writes = _writes(messages)
        if writes:
            abort_batch(open_cluster(self._options), writes)


def _writes(messages: Sequence[WriterCommitMessage | None]) -> list[PartitionWrite]:
    written = [each for each in messages if isinstance(each, TopicRowsWritten)]
    return [each.write for each in written if each.write is not None]


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise HeadraceError('format("headrace") can write only in tasks of Spark')
    return context


def _once_of_stream(name: str, context: TaskContext) -> WriteId:
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or batch is None:
        raise HeadraceError(
            "this version of Spark does not pass the query id and batch id to its tasks: set delivery=at_least_once"
        )
    return WriteId(f"{name}-{query}", int(batch))
