"""Reads that begin in an archive: archived records come from its files, all other records from the brokers.

The planner sees partitions that begin where their archive begins. A task divides its ranges when it reads them: offsets
that the table's files cover then are read from files, other offsets from the brokers. A plan has no names of files, so
a compaction between planning and reading does no harm, and a repeated task finds the same records. Offsets that neither
the archive nor the brokers have are lost data, which the brokers' responses show.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.clients.blocking import FetchedPartition, FetchPosition, OffsetAndMetadata
from headrace.errors import ConfigError
from headrace.spark.archive.compaction import file_batches
from headrace.spark.archive.files import ArchivedFile, ArchivedPartition, by_source, uncovered
from headrace.spark.archive.table import open_table
from headrace.spark.archive.table_format import ArchiveTable
from headrace.spark.archive.table_location import TableLocation
from headrace.spark.options.history import HistoryOptions
from headrace.spark.options.positions import EARLIEST
from headrace.spark.options.source import SourceOptions
from headrace.spark.source.decoding import decoded
from headrace.spark.source.division import TASK_OFFSETS
from headrace.spark.source.offsets import LogEnd, OffsetRange, TopicDescription
from headrace.spark.source.reading import read_ranges
from headrace.spark.source.schema import arrow_schema, raw_schema, topic_schema
from headrace.spark.source.source_client import SourceClient
from headrace.spark.source.tasks import ReadTask
from headrace.types import TopicPartition

PIECE_OFFSETS: Final = TASK_OFFSETS
_VANISHED: Final = 5
"""The number of times that the files of one range may be replaced and deleted while they are read."""


class History:
    """The files of an archive as of the last refresh."""

    def __init__(self, options: HistoryOptions) -> None:
        """Open the archive.

        Raises:
            ConfigError: The archive does not exist, or has decoded values.
        """
        self._table: ArchiveTable = open_table(options.format, options.table, options.catalog)
        if not self._table.schema().equals(topic_schema(include_headers=True)):
            raise ConfigError(
                f"option archive: {options.table} has decoded values: only an archive of binary values can be read as "
                "history"
            )
        self.refresh()

    @property
    def root(self) -> TableLocation:
        """The location of the table's files."""
        return self._table.root

    def refresh(self) -> None:
        """Read the table's list of files again.

        Raises:
            ConfigError: The table has files of another program, whose names do not show what they cover.
        """
        snapshot = self._table.snapshot()
        if snapshot.foreign:
            raise ConfigError(
                f"option archive: {self.root} has {len(snapshot.foreign)} files of another program, such as "
                f"{snapshot.foreign[0]}: only tables that `headrace archive` alone writes can be read as history"
            )
        self._files = by_source(snapshot.files)

    def files(self, source: ArchivedPartition) -> Sequence[ArchivedFile]:
        """Return the files of a partition, in the order of offsets."""
        return self._files.get(source, ())


class HistoryClient:
    """A `SourceClient` whose partitions begin where the archive begins."""

    def __init__(self, client: SourceClient, history: History) -> None:
        self._client = client
        self._history = history
        self._ids: dict[str, str] = {}

    def topology(self, names: Sequence[str] | None) -> dict[str, TopicDescription]:
        """Request the topics from the brokers, and refresh the archive, because every plan begins with this call."""
        found = self._client.topology(names)
        self._ids.update({name: each.topic_id for name, each in found.items()})
        self._history.refresh()
        return found

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        """Return offsets of the brokers, or the first offset of the archive if EARLIEST is wanted and it is lower."""
        found = self._client.offsets(partitions, position)
        if position == EARLIEST:
            for each in found:
                files = self.archived(each)
                if files:
                    found[each] = min(found[each], files[0].start)
        return found

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Request the end offsets from the brokers."""
        return self._client.ends(partitions)

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Search the archive first, because its records are the oldest."""
        found = {each: self._archived_at(each, time_ms) for each, time_ms in times.items()}
        rest = {each: times[each] for each, offset in found.items() if offset is None}
        of_brokers = self._client.offsets_at(rest) if rest else {}
        return {
            each: of_brokers[each] if offset is None else offset for each, offset in found.items()
        }

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Request the ends of leader epochs from the brokers."""
        return self._client.epoch_ends(epochs)

    def bytes_per_offset(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """Request an estimate from the brokers, at the first offset that they still have."""
        earliest = self._client.offsets(list(positions), EARLIEST)
        return self._client.bytes_per_offset(
            {each: max(position, earliest[each]) for each, position in positions.items()}
        )

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets at the brokers."""
        self._client.commit(group, offsets)

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> Mapping[TopicPartition, FetchedPartition]:
        """Fetch from the brokers."""
        return self._client.fetch(positions)

    def cut(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Cut ranges at the ends of files, so that several tasks read a partition. Small files stay together."""
        pieces: list[OffsetRange] = []
        for wanted in ranges:
            start = wanted.start
            for file in self.archived(wanted.topic_partition):
                if start + PIECE_OFFSETS <= file.end < wanted.end:
                    pieces.append(replace(wanted, start=start, end=file.end))
                    start = file.end
            pieces.append(replace(wanted, start=start))
        return pieces

    def lost(self, ranges: Sequence[OffsetRange]) -> str | None:
        """Describe offsets of the ranges that neither the archive nor the brokers have; None if there are none."""
        earliest = self._client.offsets([each.topic_partition for each in ranges], EARLIEST)
        self._history.refresh()  # records that brokers removed since the last refresh may be archived by now
        for wanted in ranges:
            removed = min(wanted.end, earliest[wanted.topic_partition])
            gaps = uncovered(self.archived(wanted.topic_partition), wanted.start, removed)
            if gaps:
                start, end = gaps[0]
                return (
                    f"offsets {start} to {end - 1} of {wanted.topic_partition} were removed before they were read, and "
                    f"the archive {self._history.root} does not have them"
                )
        return None

    def archived(self, partition: TopicPartition) -> Sequence[ArchivedFile]:
        """Return the files of a partition of the topic that has this name at present."""
        if partition.topic not in self._ids:
            found = self._client.topology([partition.topic])
            self._ids.update({name: each.topic_id for name, each in found.items()})
        topic_id = self._ids.get(partition.topic, "")
        return self._history.files(
            ArchivedPartition(partition.topic, topic_id, partition.partition)
        )

    def _archived_at(self, partition: TopicPartition, time_ms: int) -> int | None:
        for _ in range(_VANISHED):
            try:
                return self._looked_up(partition, time_ms)
            except OSError:  # a compaction replaced the file, and it was deleted
                self._history.refresh()
        return self._looked_up(partition, time_ms)

    def _looked_up(self, partition: TopicPartition, time_ms: int) -> int | None:
        wanted = pa.scalar(time_ms * 1000, pa.timestamp("us", tz="UTC"))
        for file in self.archived(partition):
            if file.latest_ms is not None and file.latest_ms < time_ms:
                continue
            for batch in file_batches(self._history.root, file.path, ("offset", "timestamp")):
                late = pc.index(pc.greater_equal(batch.column("timestamp"), wanted), value=True)
                if late.as_py() >= 0:
                    return int(batch.column("offset")[late.as_py()].as_py())
        return None


_histories: dict[tuple[int, HistoryOptions], History] = {}


def shared_history(options: HistoryOptions) -> History:
    """Return this process's view of an archive, refreshed."""
    key = (os.getpid(), options)
    history = _histories.get(key)
    if history is None:
        _histories.clear()
        history = _histories[key] = History(options)
    else:
        history.refresh()
    return history


def read_history(
    client: SourceClient, history: History, task: ReadTask, options: SourceOptions
) -> Iterator[Any]:
    """Yield the records of a task, of each range first the archived records."""
    records = _records(client, history, task, options)
    return decoded(records, options, arrow_schema(options))


def _records(
    client: SourceClient,
    history: History,
    task: ReadTask,
    options: SourceOptions,
    *,
    again: bool = False,
) -> Iterator[Any]:
    names = sorted({wanted.topic_partition.topic for wanted in task.ranges})
    ids = {name: each.topic_id for name, each in client.topology(names).items()}
    # Ranges of the brokers are read together until an archived range follows.
    of_brokers: list[OffsetRange] = []
    for wanted in task.ranges:
        topic, partition = wanted.topic_partition
        source = ArchivedPartition(topic, wanted.topic_id or ids.get(topic, ""), partition)
        position, vanished = wanted.start, 0
        while position < wanted.end:
            file, end = _piece(history.files(source), position, wanted.end)
            if file is None:
                of_brokers.append(replace(wanted, start=position, end=end))
                position = end
                continue
            if of_brokers:
                yield from _read_brokers(client, history, of_brokers, options, again=again)
                of_brokers = []
            try:
                for rows, after in _rows(history.root, file.path, position, end, options):
                    yield rows
                    position = after
                position = end
            except OSError:  # a compaction replaced the file, and it was deleted
                vanished += 1
                if vanished > _VANISHED or history.root.find(file.path) is not None:
                    raise
                history.refresh()
    if of_brokers:
        yield from _read_brokers(client, history, of_brokers, options, again=again)


def _read_brokers(
    client: SourceClient,
    history: History,
    ranges: Sequence[OffsetRange],
    options: SourceOptions,
    *,
    again: bool,
) -> Iterator[Any]:
    """Yield records that the archive did not have at its last refresh.

    If the brokers have removed some of them since, the archive is refreshed once: it may have them by now.
    """
    if not again:
        earliest = client.offsets([each.topic_partition for each in ranges], EARLIEST)
        if any(each.start < earliest[each.topic_partition] for each in ranges):
            history.refresh()
            yield from _records(client, history, ReadTask(ranges), options, again=True)
            return
    yield from read_ranges(client, ranges, options)


def _piece(
    files: Sequence[ArchivedFile], position: int, end: int
) -> tuple[ArchivedFile | None, int]:
    """Return the file that covers an offset, or None, and the end offset up to which that holds."""
    at = bisect_right(files, position, key=lambda file: file.start)
    if at and files[at - 1].end > position:
        return files[at - 1], min(files[at - 1].end, end)
    return None, min(files[at].start, end) if at < len(files) else end


def _rows(
    root: TableLocation, path: str, start: int, end: int, options: SourceOptions
) -> Iterator[tuple[Any, int]]:
    """Yield the rows of a file from `start` to below `end`, in the columns of the read, without decoding values.

    Each item also has the offset after the batch's last row. A reader continues there if the file is deleted.
    """
    schema = raw_schema(options)
    names = sorted({*schema.names, "offset"})
    for batch in file_batches(root, path, names, start, end):
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[batch.num_rows - 1].as_py()
        wanted = batch
        if first < start or last >= end:
            inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
            wanted = batch.filter(inside)
        if wanted.num_rows:
            yield wanted.select(schema.names).cast(schema), min(last + 1, end)
