"""Streaming writes of topics: `dataframe.writeStream.format("headrace")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.spark.errors import short_tracebacks
from headrace.spark.options.sink import SinkOptions
from headrace.spark.sink.writing import TopicRowWriter


@short_tracebacks
class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a micro-batch, exactly once unless `delivery` says otherwise.

    Spark creates a writer for each batch, and another for the batch's commit.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Check options and columns before the job starts.

        Raises:
            ConfigError: The columns cannot be written.
        """
        self._rows = TopicRowWriter(options, schema, streaming=True)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one task's rows of a micro-batch."""
        return self._rows.write(iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,
    ) -> None:
        """Commit the rows of all tasks of a micro-batch."""
        self._rows.commit(messages)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,
    ) -> None:
        """Abort the transactions of all tasks of a micro-batch."""
        self._rows.abort(messages)
