"""Where a read gets its records from: the brokers or, with the option `archive`, a table and the brokers."""

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
    """Return what a read is planned with.

    Raises:
        ConfigError: There is no such archive.
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
    """Cut the ranges of a batch read where files of an archive end, so that tasks can share them.

    A stream's tasks must be the same whenever a batch is repeated, even if files were compacted since: not for them.

    Raises:
        DataLossError: Neither archive nor brokers have all of it, and `failOnDataLoss` is true.
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
