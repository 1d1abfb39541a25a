"""Streaming reads of topics: `spark.readStream.format("headrace")`.

A checkpoint contains the JSON of `headrace.spark.source.offsets.StreamOffsets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import ConfigError
from headrace.spark.errors import short_tracebacks
from headrace.spark.options.source import SourceOptions
from headrace.spark.readers.origin import read, source_client
from headrace.spark.source.offsets import StreamOffsets, positions_to_json
from headrace.spark.source.planner import StreamPlanner
from headrace.spark.source.tasks import ReadTask


@short_tracebacks
class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming reader that Spark calls. It converts offsets from and to JSON; `StreamPlanner` decides.

    Nothing connects to a broker before the first call.
    """

    def __init__(self, options: SourceOptions | ConfigError) -> None:
        """Take the options, or the error in them.

        Spark hides an exception of `streamReader()` behind a misleading one, so the error is raised at the first call.
        """
        self._given = options
        self._planner: StreamPlanner | None = None

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._given, ConfigError):
            raise self._given
        return self._given

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a pickled copy without the planner, whose connections belong to the driver.
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> StreamPlanner:
        """The planner of this query, created at the first call."""
        if self._planner is None:
            self._planner = StreamPlanner(source_client(self._options), self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Return the starting offsets of the query."""
        return self.planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits, because Spark has no limit for several of them.

        Spark passes this limit to `latestOffset`, or `ReadAllAvailable` if the batch shall have all records.
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end offsets of this run."""
        self.planner.set_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offsets of the next batch; `start` if there are no new records."""
        begin = StreamOffsets.from_json(start)
        end = self.planner.latest(begin, limited=not isinstance(limit, ReadAllAvailable))
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end offsets of all partitions, from which Spark's progress reports compute the lag."""
        heads = self.planner.heads()
        return None if heads is None else positions_to_json(heads)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch."""
        return self.planner.tasks(StreamOffsets.from_json(start), StreamOffsets.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's records as Arrow batches."""
        # Spark turns an empty list of tasks into one partition without content.
        if not isinstance(partition, ReadTask):
            return iter(())
        return read(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the start of the next call of `latestOffset` is the end of the last finished batch."""

    def stop(self) -> None:
        """Do nothing: the connections end with the process."""
