"""Choose the origin of a read's records: the brokers or, with the option `archive`, a table and the brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.spark.options.source import SourceOptions
from headrace.spark.source.cluster_client import shared_client
from headrace.spark.source.offsets import DataLossError, OffsetRange
from headrace.spark.source.reading import read_task
from headrace.spark.source.source_client import SourceClient
from headrace.spark.source.tasks import ReadTask
from headrace.spark.worker import freeze_imports


def source_client(options: SourceOptions) -> SourceClient:
    """Return the client with which a read is planned.

    Raises:
        ConfigError: The archive does not exist.
        TransportError: No broker answers.
    """
    client = shared_client(options.client)
    client.reach()
    if options.history is None:
        return client
    from headrace.spark.archive.history import History, HistoryClient

    return HistoryClient(client, History(options.history))


def pieces(
    client: SourceClient, ranges: list[OffsetRange], options: SourceOptions
) -> list[OffsetRange]:
    """Cut the ranges of a batch read at the ends of the archive's files, so that several tasks share a range.

    The function is not for streams. A repeated batch of a stream must have the same tasks, but a compaction between the
    attempts changes the files.

    Raises:
        DataLossError: Neither the archive nor the brokers have all records, and `failOnDataLoss` is true.
    """
    if options.history is None:
        return ranges
    from headrace.spark.archive.history import HistoryClient

    assert isinstance(client, HistoryClient)
    lost = client.lost(ranges) if options.fail_on_data_loss else None
    if lost is not None:
        raise DataLossError(lost)
    return client.cut(ranges)


def read(task: ReadTask, options: SourceOptions) -> Iterator[Any]:
    """Yield a task's records as Arrow batches."""
    freeze_imports()
    client = shared_client(options.client)
    if options.history is None:
        return read_task(client, task, options)
    from headrace.spark.archive.history import read_history, shared_history

    return read_history(client, shared_history(options.history), task, options)
