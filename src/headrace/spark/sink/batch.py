"""Batch writes of topics: `dataframe.write.format("headrace")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.errors import ConfigError
from headrace.spark.errors import short_tracebacks
from headrace.spark.options.sink import SinkOptions
from headrace.spark.sink.writing import TopicRowWriter


@short_tracebacks
class HeadraceWriter(DataSourceArrowWriter):
    """The writer of a batch query: at least once, or with `txnAppId` and `txnVersion` exactly once."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Check options and columns before the job starts.

        Raises:
            ConfigError: The columns cannot be written, or the write would replace a topic.
        """
        if overwrite:
            raise ConfigError('topics cannot be overwritten: use .mode("append")')
        self._rows = TopicRowWriter(options, schema, streaming=False)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one task's rows."""
        return self._rows.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows of all tasks."""
        self._rows.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transactions of all tasks."""
        self._rows.abort(messages)
