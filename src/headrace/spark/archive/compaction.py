"""Join small files of a partition that follow each other to larger files.

The table replaces the small files in one commit, so readers see either the small files or the large file. Replaced
files remain in the directory until `headrace archive clean`, for readers that have already listed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow.parquet as pq

from headrace.spark.archive.files import ArchivedFile, WrittenFile, by_source
from headrace.spark.archive.table_format import ArchiveTable, ConflictError
from headrace.spark.archive.table_location import TableLocation
from headrace.spark.archive.writing import FileTarget, write_range

_BATCH_BYTES: Final = 16 << 20
_BATCH_ROWS: Final = 10_000


@dataclass(frozen=True)
class Compacted:
    """The result of one compaction: numbers of files, and sizes in bytes."""

    removed: int
    """The number of replaced files."""
    added: int
    """The number of new files."""
    size_before: int
    """The size of the replaced files in bytes."""
    size_after: int
    """The size of the new files in bytes."""


def plan_compaction(files: Iterable[ArchivedFile], file_bytes: int) -> list[list[ArchivedFile]]:
    """Return groups of files. Each group is joined to one file.

    The files of a group follow each other without a gap, and have together at most `file_bytes`. A file that no other
    file fits to is in no group.
    """
    groups: list[list[ArchivedFile]] = []
    for of_partition in by_source(files).values():
        group: list[ArchivedFile] = []
        size = 0
        for file in of_partition:
            follows = bool(group) and group[-1].end == file.start
            if not follows or size + file.size > file_bytes:
                groups.append(group)
                group, size = [], 0
            group.append(file)
            size += file.size
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def compact(table: ArchiveTable, file_bytes: int) -> Iterator[Compacted]:
    """Compact a table group by group, and yield the results.

    Raises:
        ConflictError: Another process compacts the same files.
    """
    table.check_commits()
    target = FileTarget(table.root, table.schema())
    for group in plan_compaction(table.snapshot().files, file_bytes):
        # The limit allows one file for each group, even if it compresses worse than the small files.
        whole = replace(target, file_bytes=2 * sum(file.size for file in group) + file_bytes)
        written = list(_rewrite(whole, group))
        try:
            table.replace(group, written)
        except ConflictError:
            for each in written:
                table.root.delete(each.file.path)
            raise
        yield Compacted(
            len(group),
            len(written),
            sum(file.size for file in group),
            sum(each.file.size for each in written),
        )


def _rewrite(target: FileTarget, group: Sequence[ArchivedFile]) -> Iterator[WrittenFile]:
    batches = (batch for file in group for batch in file_batches(target.root, file.path))
    return write_range(target, group[0].source, group[0].start, group[-1].end, batches)


def file_batches(
    root: TableLocation,
    path: str,
    columns: Sequence[str] | None = None,
    start: int = 0,
    end: int | None = None,
) -> Iterator[Any]:
    """Yield the rows of a file. Row groups without offsets from `start` to below `end` are skipped."""
    with root.open(path) as source, pq.ParquetFile(source, pre_buffer=not root.local) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            if group.num_rows == 0 or _outside(group, start, end):
                continue
            average = max(1, group.total_byte_size // group.num_rows)
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // average))
            yield from file.iter_batches(rows, row_groups=[number], columns=columns)


def _outside(group: Any, start: int, end: int | None) -> bool:
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == "offset":
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return False
            return statistics.max < start or (end is not None and statistics.min >= end)
    return False
