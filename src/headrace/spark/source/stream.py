"""Streaming reads: `spark.readStream.format("headrace")`.

What a checkpoint holds is the JSON of `headrace.spark.source.offsets.StreamOffsets`. No consumer group is involved.

The place where a query starts is durable without a store of its own. Spark asks for the initial offsets when a query
has none in its log, which includes a first batch that was logged and then failed:

1. The query starts with `startingOffsets=latest`; the initial offset is 100.
2. Spark asks how far the first batch goes: to 150, and writes {150, start: 100} to its log.
3. The batch fails, or the driver dies.
4. The query starts again. Spark asks for the initial offset: latest is 180 by now. It ignores it otherwise, and plans
   the logged batch from 180 to 150.
5. The end of that batch says where it starts: 100 to 150 is read, as it would have been in step 3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import ConfigError
from headrace.spark.cluster import SourceClient, shared_client
from headrace.spark.options.source import EARLIEST, LATEST, SourceOptions
from headrace.spark.source.batch import RangePartition
from headrace.spark.source.offsets import (
    DataLossError,
    StreamOffsets,
    Topology,
    carry_over,
    check_bounds,
    check_complete,
    check_exists,
    limit_total,
    plan,
    positions_to_json,
    removed,
    resolve,
    select,
)
from headrace.spark.source.reading import read_range
from headrace.types import TopicPartition

log = logging.getLogger(__name__)


class StreamPlanner:
    """Decides how far each micro-batch goes; lives in the driver's Python process as long as its query.

    It holds no place in the stream itself, that is Spark's: only the pinned start, and the end of an AvailableNow run.
    """

    def __init__(self, client: SourceClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._initial: StreamOffsets | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._heads: dict[TopicPartition, int] | None = None
        self._planned: StreamOffsets | None = None

    def initial(self) -> StreamOffsets:
        """Return where the query starts, the same at every call."""
        if self._initial is None:
            topology = self._client.topology(self._options.selection.names)
            check_exists(self._options.selection, topology)
            wanted = select(self._options.selection, topology)
            given = self._options.starting
            if isinstance(given, str):
                positions = self._client.offsets(
                    wanted, EARLIEST if given == "earliest" else LATEST
                )
            else:
                check_complete("startingOffsets", given, wanted)
                positions = self._checked_start(wanted)
            self._initial = StreamOffsets(positions, _ids(topology, positions))
        return self._initial

    def set_target(self) -> None:
        """Fix the end of an AvailableNow run at what there is now."""
        topology = self._client.topology(self._options.selection.names)
        self._target = self._client.offsets(select(self._options.selection, topology), LATEST)

    def latest(self, start: StreamOffsets, max_offsets: int | None) -> StreamOffsets:
        """Return the end of the batch that begins at `start`; `start` itself when there is nothing new.

        Raises:
            DataLossError: What the stream has read so far is gone or has changed, and `failOnDataLoss` is true.
        """
        topology = self._client.topology(self._options.selection.names)
        known = self._without_removed(start, topology)
        check_exists(self._options.selection, topology, known=start.positions)
        self._heads = self._client.offsets(select(self._options.selection, topology), LATEST)
        ends = self._heads if self._target is None else self._within_target(self._heads)
        new = [each for each in ends if each not in known.positions]
        begin = {**known.positions, **self._client.offsets(new, EARLIEST)}
        ends = self._after(begin, ends)
        if max_offsets is not None:
            ends = limit_total({each: begin[each] for each in ends}, ends, max_offsets)
        end = StreamOffsets(ends, _ids(topology, ends))
        if start == self._initial:
            end = replace(end, first_start=start.positions)
        elif end == replace(start, first_start=None):
            return start
        self._planned = end
        return end

    def heads(self) -> dict[TopicPartition, int] | None:
        """Return the next offset of each partition as of the last batch, for Spark's progress report."""
        return self._heads

    def ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[RangePartition]:
        """Return a task for each partition with records between two places.

        Raises:
            DataLossError: A partition moved back, or a logged batch is run again and its topic is not the same any
                more, and `failOnDataLoss` is true.
        """
        if (
            end != self._planned
        ):  # from the log of an earlier run: the topics may have changed since
            end = self._without_removed(end, self._client.topology(self._options.selection.names))
        ranges, lost = plan(start, end)
        for what in lost:
            self._lost(what)
        return [RangePartition(wanted) for wanted in ranges]

    def _checked_start(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        given = self._options.starting
        assert not isinstance(given, str)
        earliest = self._client.offsets(wanted, EARLIEST)
        latest = self._client.offsets(wanted, LATEST)
        positions = resolve(given, earliest, latest)
        for each, nearest, what in check_bounds(positions, earliest, latest):
            self._lost(what)
            positions[each] = nearest
        return positions

    def _without_removed(self, known: StreamOffsets, topology: Topology) -> StreamOffsets:
        gone = removed(known, topology)
        for what in gone:
            self._lost(what)
        return carry_over(known, topology) if gone else known

    def _within_target(self, heads: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        assert self._target is not None
        return {
            each: min(head, self._target[each])
            for each, head in heads.items()
            if each in self._target
        }

    def _after(
        self, begin: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the ends with every known partition, none before its begin unless its log really moved back."""
        assert self._heads is not None
        result = {each: offset for each, offset in begin.items() if each in self._heads}
        for each, end in ends.items():
            if self._heads[each] < begin[each]:
                self._lost(
                    f"{each} ends at offset {self._heads[each]}, before offset {begin[each]}, "
                    "up to which it has been read"
                )
                result[each] = end
            else:
                result[each] = max(begin[each], end)
        return result

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        log.warning("%s; going on (failOnDataLoss=false)", what)


def _ids(topology: Topology, positions: Iterable[TopicPartition]) -> Mapping[str, str]:
    found = {topic: topology[topic].topic_id for topic, _ in positions if topic in topology}
    return {topic: topic_id for topic, topic_id in found.items() if topic_id}


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
            self._planner = StreamPlanner(shared_client(self._options.client), self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the query starts."""
        return self.planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of `maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of this run."""
        self.planner.set_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch; `start` when there is nothing new."""
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin = StreamOffsets.from_json(start)
        end = self.planner.latest(begin, max_offsets)
        return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the next offsets of all partitions, so that progress reports show how far behind the query is."""
        heads = self.planner.heads()
        return None if heads is None else positions_to_json(heads)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        return self.planner.ranges(StreamOffsets.from_json(start), StreamOffsets.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a range's records as Arrow batches."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(shared_client(self._options.client), partition.wanted, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept outside of the checkpoint, so nothing is to be done."""

    def stop(self) -> None:
        """Nothing to do: connections end with the process."""
