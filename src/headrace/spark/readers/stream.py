"""Streaming reads: `spark.readStream.format("headrace")`.

What a checkpoint holds is the JSON of `headrace.spark.source.offsets.StreamOffsets`.
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
from headrace.spark.readers.access import read, source_client
from headrace.spark.source.offsets import StreamOffsets, positions_to_json
from headrace.spark.source.planner import StreamPlanner
from headrace.spark.source.tasks import ReadTask


@short_tracebacks
class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The face that Spark calls: JSON in and out. Nothing connects before the first call."""

    def __init__(self, options: SourceOptions | ConfigError) -> None:
        """Take the options, or what is wrong with them.

        Spark answers an exception in `streamReader()` with a misleading one of its own, so wrong options are raised at
        the first call.
        """
        self._given = options
        self._planner: StreamPlanner | None = None

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._given, ConfigError):
            raise self._given
        return self._given

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy; the planner and its connections stay with the driver.
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> StreamPlanner:
        """The planner of this query, made at the first call."""
        if self._planner is None:
            self._planner = StreamPlanner(source_client(self._options), self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query starts."""
        return self.planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits: Spark has none for several, and hands it back unless all is to be read."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run."""
        self.planner.set_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` when there is nothing new."""
        begin = StreamOffsets.from_json(start)
        end = self.planner.latest(begin, limited=not isinstance(limit, ReadAllAvailable))
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the next offsets of all partitions, so that progress reports show how far behind the query is."""
        heads = self.planner.heads()
        return None if heads is None else positions_to_json(heads)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        return self.planner.tasks(StreamOffsets.from_json(start), StreamOffsets.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's records as Arrow batches."""
        # Spark turns an empty list of tasks into one partition without content.
        if not isinstance(partition, ReadTask):
            return iter(())
        return read(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the next question for the latest offset tells of each finished batch, the last one too."""

    def stop(self) -> None:
        """Nothing to do: connections end with the process."""
