"""Plan the next batch of an archive from the table's positions and the brokers' offsets."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.spark.archive.files import ArchivedPartition, by_source
from headrace.spark.archive.table_format import FinalError, TableSnapshot
from headrace.spark.source.division import TaskDivision
from headrace.spark.source.limits import limit_total
from headrace.spark.source.offsets import OffsetRange, Topology
from headrace.spark.source.tasks import ReadTask, tasks
from headrace.types import TopicPartition

log = logging.getLogger(__name__)

TASK_OFFSETS: Final = 20_000
"""The offsets for which writing takes about as long as starting a task."""
RECORD_BYTES: Final = 100
"""The assumed bytes per record in a file, as long as nothing is archived."""


@dataclass(frozen=True)
class BatchLimits:
    """The size of a batch, and its division into tasks and files."""

    max_offsets: int = 5_000_000
    """The most offsets of a batch."""
    file_bytes: int = 128 << 20
    """The size in bytes at which a file ends."""
    cores: int = 2
    """The number of tasks that Spark runs at the same time."""


@dataclass(frozen=True)
class BatchPlan:
    """One batch: its number in the table, its tasks, and the next offset of each partition after it."""

    batch: int
    """The number of the batch in the table, from 1 on."""
    tasks: tuple[tuple[OffsetRange, ...], ...]
    """The ranges of each task."""
    positions: Mapping[ArchivedPartition, int]
    """The next offset of each partition of the batch after it."""

    @property
    def ranges(self) -> list[OffsetRange]:
        """The ranges of all tasks, sorted by partition and offset."""
        every = [wanted for task in self.tasks for wanted in task]
        return sorted(every, key=lambda each: (each.topic_partition, each.start))


def sources(
    topology: Topology, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ArchivedPartition]:
    """Return the partitions with the present ids of their topics."""
    return {
        each: ArchivedPartition(each.topic, topology[each.topic].topic_id, each.partition)
        for each in partitions
    }


def check_same_topics(
    snapshot: TableSnapshot,
    current: Iterable[ArchivedPartition],
    recreated: Literal["fail", "archive"],
) -> None:
    """Check that the topics were not created again since they were archived.

    Raises:
        ConfigError: A topic was deleted and created again, and `recreated` is "fail".
    """
    archived: dict[str, set[str]] = {}
    for source in snapshot.positions():
        archived.setdefault(source.topic, set()).add(source.topic_id)
    for source in current:
        known = archived.get(source.topic, set())
        if known and source.topic_id and source.topic_id not in known and recreated == "fail":
            raise ConfigError(
                f"topic {source.topic} was deleted and created again since it was archived. Archive the new "
                "topic to another table, or to the same table with --recreated archive: its offsets begin at 0 again"
            )


def begin(
    snapshot: TableSnapshot,
    current: Mapping[TopicPartition, ArchivedPartition],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    skip_lost: bool,
) -> dict[TopicPartition, int]:
    """Return the start offset of each partition: after the archived records, or at the partition's first record.

    Raises:
        FinalError: Records were removed before they were archived, and `skip_lost` is false; or the log ends before
            the archived offsets.
    """
    positions = snapshot.positions()
    start: dict[TopicPartition, int] = {}
    for each, source in current.items():
        position = positions.get(source, earliest[each])
        if position < earliest[each]:
            what = f"offsets {position} to {earliest[each] - 1} of {each} were removed before they were archived"
            if not skip_lost:
                raise FinalError(f"{what}. With --skip-lost the archive continues without them")
            log.warning("%s; the archive continues without them", what)
            position = earliest[each]
        elif position > latest[each]:
            raise FinalError(
                f"{each} ends at offset {latest[each]}, but is archived up to offset {position}: it was truncated, "
                "or the archive has read another cluster"
            )
        start[each] = position
    return start


def plan_batch(
    snapshot: TableSnapshot,
    current: Mapping[TopicPartition, ArchivedPartition],
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    limits: BatchLimits,
) -> BatchPlan | None:
    """Return the next batch, or None if the table has all records up to `end`."""
    limited = limit_total(start, end, limits.max_offsets)
    ranges = [
        OffsetRange(each, start[each], limited[each])
        for each in sorted(current)
        if limited[each] > start[each]
    ]
    if not ranges:
        return None
    found = _divided(ranges, _offsets_per_file(snapshot, limits.file_bytes), limits.cores)
    return BatchPlan(
        snapshot.batch + 1,
        tuple(task.ranges for task in found),
        {current[each.topic_partition]: each.end for each in ranges},
    )


def _offsets_per_file(snapshot: TableSnapshot, file_bytes: int) -> int:
    """Estimate the number of offsets of a file from the last files of the table."""
    recent = [files[-1] for files in by_source(snapshot.files).values() if files[-1].records]
    records = sum(file.records for file in recent)
    average = sum(file.size for file in recent) / records if records else RECORD_BYTES
    return max(math.floor(file_bytes / max(average, 1)), 1)


def _divided(ranges: Sequence[OffsetRange], per_file: int, cores: int) -> list[ReadTask]:
    """Divide ranges into tasks. A task writes at most one full file, and large batches keep all cores busy."""
    total = sum(each.size for each in ranges)
    worth = max(1, min(cores, total // TASK_OFFSETS))
    division = TaskDivision(cores, None, worth, per_file, TASK_OFFSETS)
    return tasks(ranges, division)
