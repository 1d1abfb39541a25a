"""One batch after another: plan, write, commit, tell the group. Any of these may be the last thing that happens.

A batch begins where the table ends, whatever happened to the one before:

1. Killed while tasks write: their files are in no table. They are written again, under other names.
2. Killed before the commit: as above.
3. Killed in or after the commit: the table has the batch, or has not; its positions say so, for they are part of it.
4. Killed before the group's offsets are committed: the next run commits them first.

Two archivers of one table write the same batch number; the commit of the second is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.errors import HeadraceError
from headrace.spark.archive.files import ArchivedPartition, WrittenFile, uncovered
from headrace.spark.archive.planning import (
    BatchLimits,
    BatchPlan,
    begin,
    check_same_topics,
    plan_batch,
    sources,
)
from headrace.spark.archive.table_format import ArchiveTable, BatchCommit, Snapshot
from headrace.spark.options.positions import EARLIEST, LATEST
from headrace.spark.options.selection import TopicSelection
from headrace.spark.source.resolving import check_exists, current_topology, select
from headrace.spark.source.source_client import SourceClient
from headrace.types import TopicPartition

Execute = Callable[[BatchPlan, Mapping[TopicPartition, ArchivedPartition]], Iterable[WrittenFile]]
"""Writes the files of a batch, in whatever processes, and returns what was written."""
TellGroup = Callable[[Mapping[TopicPartition, int]], None]
"""Commits offsets to a consumer group, for those who watch lag; no archive reads them back."""


@dataclass(frozen=True)
class BatchResult:
    """What one batch did."""

    batch: int
    files: int
    records: int
    size: int
    behind: int
    """How many offsets wait."""


@dataclass
class Archiver:
    """Copies topics into a table, batch by batch."""

    client: SourceClient
    table: ArchiveTable
    selection: TopicSelection
    execute: Execute
    tell_group: TellGroup
    limits: BatchLimits = field(default_factory=BatchLimits)
    recreated: Literal["fail", "archive"] = "fail"
    skip_lost: bool = False

    def ends(self) -> dict[TopicPartition, int]:
        """Return where the partitions end now."""
        topology = current_topology(self.client, self.selection)
        check_exists(self.selection, topology)
        return self.client.offsets(select(self.selection, topology), LATEST)

    def run_batch(self, ends: Mapping[TopicPartition, int] | None = None) -> BatchResult | None:
        """Archive the next batch; None when there is nothing new, or nothing below `ends`.

        Raises:
            ConfigError: A topic does not exist, or is another one than that which was archived.
            HeadraceError: Records were removed before they were archived, or a task failed.
            ConflictError: Somebody else archives to the same table.
        """
        topology = current_topology(self.client, self.selection)
        check_exists(self.selection, topology)
        wanted = [each for each in select(self.selection, topology) if ends is None or each in ends]
        current = sources(topology, wanted)
        snapshot = self.table.snapshot(current.values())
        check_same_topics(snapshot, current.values(), self.recreated)
        self._tell_group(current, snapshot.positions())
        latest = self.client.offsets(wanted, LATEST)
        start = begin(
            snapshot,
            current,
            self.client.offsets(wanted, EARLIEST),
            latest,
            skip_lost=self.skip_lost,
        )
        end = {each: max(start[each], min(latest[each], (ends or latest)[each])) for each in wanted}
        plan = plan_batch(snapshot, current, start, end, self.limits)
        if plan is None:
            return None
        return self._archive(plan, current, snapshot, latest)

    def _archive(
        self,
        plan: BatchPlan,
        current: Mapping[TopicPartition, ArchivedPartition],
        snapshot: Snapshot,
        latest: Mapping[TopicPartition, int],
    ) -> BatchResult:
        files = tuple(self.execute(plan, current))
        _check_whole(plan, files)
        self._check_unchanged(current)
        self.table.append(BatchCommit(plan.batch, files, plan.positions))
        after = {**snapshot.positions(), **plan.positions}
        self._tell_group(current, after)
        return BatchResult(
            plan.batch,
            len(files),
            sum(written.file.records for written in files),
            sum(written.file.size for written in files),
            sum(max(0, end - after.get(current[each], end)) for each, end in latest.items()),
        )

    def _check_unchanged(self, current: Mapping[TopicPartition, ArchivedPartition]) -> None:
        """Refuse a batch whose topics were created again while it was read: its files hold records of both."""
        topology = self.client.topology(self.selection.names)
        for each, source in current.items():
            found = topology.get(each.topic)
            if found is not None and found.topic_id != source.topic_id:
                raise HeadraceError(
                    f"topic {each.topic} was created again while it was archived; this batch is dropped"
                )

    def _tell_group(
        self,
        current: Mapping[TopicPartition, ArchivedPartition],
        positions: Mapping[ArchivedPartition, int],
    ) -> None:
        self.tell_group(
            {each: positions[source] for each, source in current.items() if source in positions}
        )


def _check_whole(plan: BatchPlan, files: Iterable[WrittenFile]) -> None:
    """Check that the files are those of the plan, before they become part of the table.

    Raises:
        HeadraceError: They leave something out or go beyond it.
    """
    found: dict[TopicPartition, list[WrittenFile]] = {}
    for written in files:
        found.setdefault(written.file.source.topic_partition, []).append(written)
    for wanted in plan.ranges:
        inside = [
            written.file
            for written in found.get(wanted.topic_partition, [])
            if wanted.start <= written.file.start and written.file.end <= wanted.end
        ]
        covered = sum(file.end - file.start for file in inside)
        if uncovered(inside, wanted.start, wanted.end) or covered != wanted.size:
            raise HeadraceError(
                f"the tasks of batch {plan.batch} did not write {wanted.topic_partition} from offset {wanted.start} "
                f"to {wanted.end - 1} exactly once; nothing was committed"
            )
    written_offsets = sum(
        each.file.end - each.file.start for group in found.values() for each in group
    )
    if written_offsets != sum(wanted.size for wanted in plan.ranges):
        raise HeadraceError(f"the tasks of batch {plan.batch} wrote more than was planned")
