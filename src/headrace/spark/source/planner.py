"""How far each micro-batch of a stream goes, and what is noticed when its topics change.

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
    """Decides how far each micro-batch goes; lives in the driver's Python process as long as its query.

    It holds no place in the stream itself, that is Spark's: only the pinned start, and the end of an AvailableNow run.
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
        """Return where the query starts, the same at every call."""
        if self._initial is None:
            topology = current_topology(self._client, self._options.selection)
            check_exists(self._options.selection, topology)
            wanted = select(self._options.selection, topology)
            positions = start_positions(self._client, self._options, wanted, self._lost, self._lost)
            self._initial = StreamOffsets(positions, _ids(topology, positions))
        return self._initial

    def set_target(self) -> None:
        """Fix the end of an AvailableNow run at what there is now."""
        topology = self._client.topology(self._options.selection.names)
        self._target = self._client.offsets(select(self._options.selection, topology), LATEST)

    def latest(self, start: StreamOffsets, *, limited: bool = True) -> StreamOffsets:
        """Return the end of the batch that begins at `start`; `start` itself when there is nothing new.

        All before `start` has been processed, which is what the option `group` tells the brokers.

        Args:
            start: Where the batch begins.
            limited: Whether the options' limits hold; they do not when Spark asks for all there is.

        Raises:
            DataLossError: What the stream has read so far is gone or has changed, and `failOnDataLoss` is true.
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
        """Return the next offset of each partition as of the last batch, for Spark's progress report."""
        return self._heads

    def tasks(self, start: StreamOffsets, end: StreamOffsets) -> list[ReadTask]:
        """Return the tasks that read what lies between two places.

        Raises:
            DataLossError: A partition moved back, or a logged batch is run again and its topic is not the same any
                more, and `failOnDataLoss` is true.
        """
        if end != self._planned:  # from the log of an earlier run: topics may have changed since
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
        """Return where the batch begins in each partition that has part in it.

        An AvailableNow run leaves partitions that were added meanwhile to the next one.
        """
        begin = {each: at for each, at in known.positions.items() if each in found}
        new = [
            each
            for each in found
            if each not in begin and (self._target is None or each in self._target)
        ]
        unread = [each for each, at in begin.items() if at < found[each].offset]
        if self._options.history is not None:  # what brokers removed is in the archive
            unread = []
        for each, earliest in self._client.offsets([*new, *unread], EARLIEST).items():
            at = begin.get(each, 0)  # what is new is read from its beginning
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
        """Return where the run's partitions end; before their begin only where a log moved back."""
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
        """Return where logs were cut off below what was read of them, and filled with other records since.

        A log that was cut off has a new leader epoch; the brokers tell where the epoch of the last batch ends now.
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
                    f"{each} was cut off at offset {end_offset} after it had been read up to offset "
                    f"{known.positions[each]}: other records lie there now"
                )
                cut[each] = end_offset
            else:
                self._compared[each] = changed[each]
        return cut

    def _too_little(
        self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        """Whether to wait for more records, as `minOffsetsPerTrigger` and `maxTriggerDelay` say.

        An AvailableNow run, which ends when there is nothing to read, waits for none: it would leave them behind.
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
            places = {each: begin[each] for each in waiting(begin, ends)}
            ends = limit_bytes(begin, ends, self._client.bytes_per_offset(places), max_bytes)
        return ends

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(what)
        log.warning("%s; going on (failOnDataLoss=false)", what)


def _ids(topology: Topology, positions: Iterable[TopicPartition]) -> Mapping[str, str]:
    found = {topic: topology[topic].topic_id for topic, _ in positions if topic in topology}
    return {topic: topic_id for topic, topic_id in found.items() if topic_id}
