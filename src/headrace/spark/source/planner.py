"""Decide the end offsets of each micro-batch of a stream, and notice changes of its topics.

The starting offsets of a query are durable without a store of their own. Spark requests the initial offsets if its log
has no finished batch, also if it logged a first batch that then failed:

1. The query starts with `startingOffsets=latest`. The planner returns the initial offset 100.
2. Spark requests the end of the first batch. The planner returns {150, start: 100}, and Spark writes it to its log.
3. The batch fails, or the driver is killed.
4. The query starts again. Spark requests the initial offset, and the planner returns 180, the latest offset by now.
   Spark requests the tasks of the logged batch from 180 to 150.
5. The planner takes the start from the batch's end offsets. The tasks read 100 to 150, as in step 3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headrace.spark.options.positions import EARLIEST, LATEST
from headrace.spark.options.source import SourceOptions
from headrace.spark.source.division import TaskDivision
from headrace.spark.source.limits import limit_bytes, limit_total, waiting
from headrace.spark.source.offsets import (
    DataLossError,
    LogEnd,
    StreamOffsets,
    Topology,
    carry_over,
    plan,
    removed,
)
from headrace.spark.source.progress import GroupProgress
from headrace.spark.source.resolving import (
    check_exists,
    current_topology,
    select,
    start_positions,
)
from headrace.spark.source.source_client import SourceClient
from headrace.spark.source.tasks import ReadTask, tasks
from headrace.types import TopicPartition

log = logging.getLogger(__name__)


class StreamPlanner:
    """Decides the end offsets of each micro-batch. The driver's Python process has one planner for each query.

    Spark stores the query's offsets. The planner keeps only the starting offsets and the end of an AvailableNow run.
    """

    def __init__(
        self,
        client: SourceClient,
        options: SourceOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._options = options
        self._clock = clock
        self._progress = GroupProgress(client, options.group, clock) if options.group else None
        self._division = TaskDivision.of(options)
        self._initial: StreamOffsets | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._heads: dict[TopicPartition, int] | None = None
        self._planned: StreamOffsets | None = None
        self._last_batch_s: float | None = None
        self._compared: dict[TopicPartition, tuple[int, int]] = {}

    def initial(self) -> StreamOffsets:
        """Return the starting offsets of the query, the same at every call."""
        if self._initial is None:
            topology = current_topology(self._client, self._options.selection)
            check_exists(self._options.selection, topology)
            wanted = select(self._options.selection, topology)
            positions = start_positions(self._client, self._options, wanted, self._lost, self._lost)
            self._initial = StreamOffsets(positions, _ids(topology, positions))
        return self._initial

    def set_target(self) -> None:
        """Fix the end of an AvailableNow run at the present end offsets."""
        topology = self._client.topology(self._options.selection.names)
        self._target = self._client.offsets(select(self._options.selection, topology), LATEST)

    def latest(self, start: StreamOffsets, *, limited: bool = True) -> StreamOffsets:
        """Return the end offsets of the batch that begins at `start`; `start` itself if there are no new records.

        The query has processed all records before `start`. With the option `group` these offsets are committed here.

        Args:
            start: The offsets at which the batch begins.
            limited: Whether the limits of the options count. They do not if Spark requests all available records.

        Raises:
            DataLossError: Topics or records of the stream are gone or replaced, and `failOnDataLoss` is true.
        """
        topology = current_topology(self._client, self._options.selection, start)
        selected = select(self._options.selection, topology)
        known = self._without_removed(start, topology)
        check_exists(self._options.selection, topology, known=start.positions)
        found = self._client.ends(selected)
        self._heads = {each: end.offset for each, end in found.items()}
        if self._progress is not None:
            there = {each: at for each, at in known.positions.items() if each in found}
            self._progress.reached(there, known.epochs)
        begin = self._begin(known, found)
        ends = self._ends(known, begin, found)
        if limited:
            if self._too_little(begin, ends):
                return start
            ends = self._within_limits(begin, ends)
        return self._end(start, ends, topology, found)

    def heads(self) -> dict[TopicPartition, int] | None:
        """Return the partitions' end offsets at the last call of `latest`, for Spark's progress report; None before."""
        return self._heads

    def tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[ReadTask]:
        """Return the tasks that read from `start` to `end`.

        Raises:
            DataLossError: A log became shorter, or the topic of a repeated batch was replaced, and `failOnDataLoss` is
                true.
        """
        if (
            end != self._planned
        ):  # an earlier run logged this end, and topics may have changed since
            topology = current_topology(self._client, self._options.selection, end)
            end = self._without_removed(end, topology)
            there = [
                each for each in select(self._options.selection, topology) if each in end.positions
            ]
            self._truncated(end, self._client.ends(there))
        ranges, lost = plan(start, end)
        for what in lost:
            self._lost(what)
        return tasks(ranges, end.division or self._division)

    def _end(
        self,
        start: StreamOffsets,
        ends: dict[TopicPartition, int],
        topology: Topology,
        found: Mapping[TopicPartition, LogEnd],
    ) -> StreamOffsets:
        ids = _ids(topology, ends)
        end = StreamOffsets(
            ends,
            ids,
            epochs={
                each: found[each].leader_epoch for each in ends if found[each].leader_epoch >= 0
            },
            division=self._division,
        )
        if start == self._initial:
            end = replace(end, first_start=start.positions)
        elif ends == start.positions and ids == start.topic_ids:
            return start
        self._planned = end
        return end

    def _without_removed(self, known: StreamOffsets, topology: Topology) -> StreamOffsets:
        selected = set(select(self._options.selection, topology))
        gone = removed(known, topology, selected)
        for what in gone:
            self._lost(what)
        return carry_over(known, topology) if gone else known

    def _begin(
        self, known: StreamOffsets, found: Mapping[TopicPartition, LogEnd]
    ) -> dict[TopicPartition, int]:
        """Return the start offsets of the batch for each partition that it reads.

        An AvailableNow run leaves partitions that were added since its start to the next run.
        """
        begin = {each: at for each, at in known.positions.items() if each in found}
        new = [
            each
            for each in found
            if each not in begin and (self._target is None or each in self._target)
        ]
        unread = [each for each, at in begin.items() if at < found[each].offset]
        if (
            self._options.history is not None
        ):  # the archive has the records that the brokers removed
            unread = []
        for each, earliest in self._client.offsets([*new, *unread], EARLIEST).items():
            at = begin.get(each, 0)  # a new partition is read from its beginning
            if at < earliest:
                self._lost(
                    f"offsets {at} to {earliest - 1} of {each} were removed before they were read"
                )
            begin[each] = max(at, earliest)
        return begin

    def _ends(
        self,
        known: StreamOffsets,
        begin: Mapping[TopicPartition, int],
        found: Mapping[TopicPartition, LogEnd],
    ) -> dict[TopicPartition, int]:
        """Return the end offsets for this batch without limits.

        An end is before its start only if a log was truncated.
        """
        ends = self._truncated(known, found)
        for each, first in begin.items():
            end = found[each].offset
            if each in ends:
                continue
            if end < first:
                self._lost(
                    f"{each} ends at offset {end}, before offset {first}, up to which it has been read"
                )
                ends[each] = end
            elif self._target is None:
                ends[each] = end
            else:
                ends[each] = max(first, min(end, self._target.get(each, first)))
        return ends

    def _truncated(
        self, known: StreamOffsets, found: Mapping[TopicPartition, LogEnd]
    ) -> dict[TopicPartition, int]:
        """Return the offsets at which logs were truncated below the query's position.

        A truncated log has a new leader epoch. The brokers return the end offset of the epoch that the last batch had.
        """
        changed = {
            each: (known.epochs[each], end.leader_epoch)
            for each, end in found.items()
            if each in known.positions and 0 <= known.epochs.get(each, -1) < end.leader_epoch
        }
        asked = {
            each: old
            for each, (old, new) in changed.items()
            if self._compared.get(each) != (old, new)
        }
        cut: dict[TopicPartition, int] = {}
        for each, end_offset in self._client.epoch_ends(asked).items():
            if 0 <= end_offset < known.positions[each]:
                self._lost(
                    f"{each} was truncated at offset {end_offset} after it had been read up to offset "
                    f"{known.positions[each]}: other records have these offsets now"
                )
                cut[each] = end_offset
            else:
                self._compared[each] = changed[each]
        return cut

    def _too_little(
        self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        """Return whether the batch waits for more records, by `minOffsetsPerTrigger` and `maxTriggerDelay`.

        An AvailableNow run does not wait. It ends when a batch has no new records, so it would not read the last
        records.
        """
        minimum = self._options.min_offsets_per_trigger
        if minimum is None or self._target is not None:
            return False
        now = self._clock()
        in_time = (
            self._last_batch_s is not None
            and (now - self._last_batch_s) * 1000 < self._options.max_trigger_delay_ms
        )
        if in_time and sum(waiting(begin, ends).values()) < minimum:
            return True
        self._last_batch_s = now
        return False

    def _within_limits(
        self, begin: Mapping[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        max_offsets, max_bytes = (
            self._options.max_offsets_per_trigger,
            self._options.max_bytes_per_trigger,
        )
        if max_offsets is not None:
            ends = limit_total(begin, ends, max_offsets)
        if max_bytes is not None:
            positions = {each: begin[each] for each in waiting(begin, ends)}
            ends = limit_bytes(begin, ends, self._client.bytes_per_offset(positions), max_bytes)
        return ends

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        log.warning("%s; the query continues (failOnDataLoss=false)", what)


def _ids(topology: Topology, positions: Iterable[TopicPartition]) -> Mapping[str, str]:
    found = {topic: topology[topic].topic_id for topic, _ in positions if topic in topology}
    return {topic: topic_id for topic, topic_id in found.items() if topic_id}
