"""Streaming reads of Kinesis streams: `spark.readStream.format("headrace-kinesis")`."""

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
from headrace.spark.kinesis.connections import shared_connections
from headrace.spark.kinesis.offsets import StreamOffset
from headrace.spark.kinesis.options import ReadOptions
from headrace.spark.kinesis.planner import RoundPlanner
from headrace.spark.kinesis.tasks import RoundTask, read_round

log = logging.getLogger(__name__)


@short_tracebacks
class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming reader that Spark calls. It converts offsets from and to JSON; `RoundPlanner` decides.

    Nothing connects before the first call.
    """

    def __init__(self, options: ReadOptions | ConfigError) -> None:
        """Take the options, or the error in them, which the first call raises. Spark hides exceptions raised here."""
        self._given = options
        self._planner: RoundPlanner | None = None

    @property
    def _options(self) -> ReadOptions:
        if isinstance(self._given, ConfigError):
            raise self._given
        return self._given

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a pickled copy without the planner, which belongs to the driver.
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> RoundPlanner:
        """The planner of this query, created at the first call."""
        if self._planner is None:
            store = self._options.store or ""
            if store.startswith("sqlite:"):
                log.warning(
                    "option store=%s is a file: if tasks run on several machines, use a DynamoDB table",
                    store,
                )
            self._planner = RoundPlanner(self._options, shared_connections())
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first round."""
        return self.planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit. The limits of this source bound the parts of a round, for every trigger."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run at the present time."""
        self.planner.set_target()

    def latestOffset(
        self,
        start: dict[str, Any],
        limit: ReadLimit,
    ) -> dict[str, Any]:
        """Return the offset after the next round; `start` if there are no new records."""
        begin = StreamOffset.from_json(start)
        end = shared_connections().run(self.planner.latest(begin))
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the milliseconds by which each shard is behind. Kinesis does not report a shard's newest position."""
        return {"millisBehindLatest": self.planner.behind_ms}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch from its end offset, which contains the batch's start, too."""
        if start == end:
            return []
        return shared_connections().run(self.planner.tasks(StreamOffset.from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a task's records as Arrow batches."""
        # Spark turns an empty list of tasks into one partition without content.
        if not isinstance(partition, RoundTask):
            return iter(())
        return read_round(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the ends in the store that no later batch needs."""
        shared_connections().run(self.planner.committed(StreamOffset.from_json(end)))

    def stop(self) -> None:
        """Do nothing: the connections end with the process."""
