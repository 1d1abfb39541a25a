"""Archive batch after batch: plan, write files, commit the table, commit the group's offsets.

The archiver may be killed at any time. The next batch always begins where the table ends:

1. Killed while tasks write: the files are in no table. The next run writes the records to files with other names.
2. Killed before the commit of the table: the same.
3. Killed during or after the commit: the table has the batch or not. Its positions, part of the commit, say which.
4. Killed before the commit of the group's offsets: the next run commits them first.

Two archivers of one table write the same batch number, and the table refuses the second commit.
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
from headrace.spark.archive.table_format import ArchiveTable, BatchCommit, TableSnapshot
from headrace.spark.options.positions import EARLIEST, LATEST
from headrace.spark.options.selection import TopicSelection
from headrace.spark.source.resolving import check_exists, current_topology, select
from headrace.spark.source.source_client import SourceClient
from headrace.types import TopicPartition

Execute = Callable[[BatchPlan, Mapping[TopicPartition, ArchivedPartition]], Iterable[WrittenFile]]
"""Writes the files of a batch, possibly in other processes, and describes the files."""
CommitOffsets = Callable[[Mapping[TopicPartition, int]], None]
"""Commits offsets to a consumer group, so that tools show the archive's lag. The archive never reads them."""


@dataclass(frozen=True)
class BatchResult:
    """The result of one batch."""

    batch: int
    """The number of the batch in the table, from 1 on."""
    files: int
    """The number of written files."""
    records: int
    """The number of archived records."""
    size: int
    """The size of the files in bytes."""
    behind: int
    """The number of offsets that are not archived yet."""


@dataclass
class Archiver:
    """Copies topics to a table, batch by batch."""

    client: SourceClient
    table: ArchiveTable
    selection: TopicSelection
    execute: Execute
    commit_offsets: CommitOffsets
    limits: BatchLimits = field(default_factory=BatchLimits)
    recreated: Literal["fail", "archive"] = "fail"
    """The treatment of a topic that was created again: "fail" is an error, "archive" adds its records to the table."""
    skip_lost: bool = False
    """Whether the archive continues without records that were removed before they were archived."""

    def ends(self) -> dict[TopicPartition, int]:
        """Return the present end offsets of the partitions."""
        topology = current_topology(self.client, self.selection)
        check_exists(self.selection, topology)
        return self.client.offsets(select(self.selection, topology), LATEST)

    def run_batch(self, ends: Mapping[TopicPartition, int] | None = None) -> BatchResult | None:
        """Archive the next batch. Return None if there are no new records, or none below `ends`.

        Raises:
            ConfigError: A topic does not exist, or was created again since it was archived.
            HeadraceError: Records were removed before they were archived, or a task failed.
            ConflictError: Another archiver writes to the same table.
        """
        topology = current_topology(self.client, self.selection)
        check_exists(self.selection, topology)
        wanted = [each for each in select(self.selection, topology) if ends is None or each in ends]
        current = sources(topology, wanted)
        snapshot = self.table.snapshot(current.values())
        check_same_topics(snapshot, current.values(), self.recreated)
        self._commit_offsets(current, snapshot.positions())
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
        snapshot: TableSnapshot,
        latest: Mapping[TopicPartition, int],
    ) -> BatchResult:
        files = tuple(self.execute(plan, current))
        _check_whole(plan, files)
        self._check_unchanged(current)
        self.table.append(BatchCommit(plan.batch, files, plan.positions))
        after = {**snapshot.positions(), **plan.positions}
        self._commit_offsets(current, after)
        return BatchResult(
            plan.batch,
            len(files),
            sum(written.file.records for written in files),
            sum(written.file.size for written in files),
            sum(max(0, end - after.get(current[each], end)) for each, end in latest.items()),
        )

    def _check_unchanged(self, current: Mapping[TopicPartition, ArchivedPartition]) -> None:
        """Reject a batch whose topic was created again while it was read: its files may have records of both topics."""
        topology = self.client.topology(self.selection.names)
        for each, source in current.items():
            found = topology.get(each.topic)
            if found is not None and found.topic_id != source.topic_id:
                raise HeadraceError(
                    f"topic {each.topic} was created again while it was archived; the batch is not committed"
                )

    def _commit_offsets(
        self,
        current: Mapping[TopicPartition, ArchivedPartition],
        positions: Mapping[ArchivedPartition, int],
    ) -> None:
        self.commit_offsets(
            {each: positions[source] for each, source in current.items() if source in positions}
        )


def _check_whole(plan: BatchPlan, files: Iterable[WrittenFile]) -> None:
    """Check that the files cover exactly the ranges of the plan, before they become part of the table.

    Raises:
        HeadraceError: The files have gaps, overlap, or have more than was planned.
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
