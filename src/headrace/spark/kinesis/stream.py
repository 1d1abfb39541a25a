"""Streaming reads: `spark.readStream.format("headrace-kinesis")`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from headrace.errors import ConfigError
from headrace.spark.errors import short_tracebacks
from headrace.spark.kinesis.access import access
from headrace.spark.kinesis.offsets import StreamOffset
from headrace.spark.kinesis.options import ReadOptions
from headrace.spark.kinesis.planner import Planner
from headrace.spark.kinesis.tasks import RoundTask, read_round

log = logging.getLogger(__name__)


@short_tracebacks
class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The face that Spark calls: JSON in and out. Nothing connects before the first call."""

    def __init__(self, options: ReadOptions | ConfigError) -> None:
        """Take the options, or what is wrong with them: Spark hides an exception that is raised here."""
        self._given = options
        self._planner: Planner | None = None

    @property
    def _options(self) -> ReadOptions:
        if isinstance(self._given, ConfigError):
            raise self._given
        return self._given

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy; the planner stays with the driver.
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> Planner:
        """The planner of this query, made at the first call."""
        if self._planner is None:
            store = self._options.store or ""
            if store.startswith("sqlite:"):
                log.warning(
                    "option store=%s is a file: where tasks run on several machines, use a DynamoDB table",
                    store,
                )
            self._planner = Planner(self._options, access())
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first round."""
        return self.planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit: those of this source bound the parts of a round, and hold for every trigger."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run."""
        self.planner.set_target()

    def latestOffset(
        self,
        start: dict[str, Any],
        limit: ReadLimit,
    ) -> dict[str, Any]:
        """Return the offset behind the next round; `start` when there is nothing to read."""
        begin = StreamOffset.from_json(start)
        end = access().run(self.planner.latest(begin))
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far each shard is behind, for progress reports: Kinesis tells nobody a newest position."""
        return {"millisBehindLatest": self.planner.behind_ms}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch. They go by its end alone, which says where it begins."""
        if start == end:
            return []
        return access().run(self.planner.tasks(StreamOffset.from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's records as Arrow batches."""
        # Spark turns an empty list of tasks into one partition without content.
        if not isinstance(partition, RoundTask):
            return iter(())
        return read_round(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Forget what no later batch needs."""
        access().run(self.planner.committed(StreamOffset.from_json(end)))

    def stop(self) -> None:
        """Nothing to do: connections end with the process."""
