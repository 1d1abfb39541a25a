"""The interface of table formats: the files of an archive, its positions, and atomic commits.

The positions of an archive are part of the table, in the commit that adds the files. There is no other state that could
be lost: a run begins where the table ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import HeadraceError
from headrace.spark.archive.files import ArchivedFile, ArchivedPartition, WrittenFile
from headrace.spark.archive.table_location import TableLocation


class FinalError(HeadraceError):
    """An error for which a retry does not help."""


class ConflictError(FinalError):
    """Another process has changed the table, so that the commit does not fit any more."""


@dataclass(frozen=True)
class TableSnapshot:
    """The state of the table at one time."""

    name: str
    """The name of the archive, set when the table was created."""
    batch: int
    """The number of the last batch; 0 before the first."""
    files: tuple[ArchivedFile, ...]
    """The files of the archive, sorted by partition and offset."""
    foreign: tuple[str, ...] = ()
    """The paths of files that another program has added."""
    recorded: Mapping[ArchivedPartition, int] = field(default_factory=dict)
    """The next offset of each partition as recorded by commits. Partitions may be missing."""

    def positions(self) -> dict[ArchivedPartition, int]:
        """Return the next offset of each archived partition."""
        found = {file.source: file.end for file in self.files}
        return {**found, **self.recorded}


@dataclass(frozen=True)
class BatchCommit:
    """The changes of one batch, which are committed atomically."""

    batch: int
    """The number of the batch in the table, from 1 on."""
    files: tuple[WrittenFile, ...]
    """The files that the commit adds."""
    positions: Mapping[ArchivedPartition, int]
    """The next offset of each partition of the batch."""


class ArchiveTable(Protocol):
    """A table with archived topics. Paths of files are relative to `root`."""

    kind: str
    root: TableLocation

    def snapshot(self, candidates: Collection[ArchivedPartition] = ()) -> TableSnapshot:
        """Return the present state of the table.

        Args:
            candidates: Partitions whose positions are wanted even if the table has no files of them.
        """

    def schema(self) -> Any:
        """Return the columns of the table as an Arrow schema."""

    def check_commits(self) -> None:
        """Check that the store refuses one of two concurrent commits.

        Raises:
            ConfigError: The store accepts both.
        """

    def append(self, commit: BatchCommit) -> None:
        """Add a batch's files and positions in one commit. If the table already has the batch, do nothing.

        Raises:
            ConflictError: Another archiver has committed a batch with this number.
        """

    def replace(self, removed: Sequence[ArchivedFile], added: Sequence[WrittenFile]) -> None:
        """Replace files by others with the same records, in one commit.

        Raises:
            ConflictError: The table does not have one of the removed files any more.
        """

    def delete_orphans(self, age_ms: int, *, dry_run: bool) -> list[str]:
        """Delete files that have not been part of the table for `age_ms`, or never were. Return their paths."""


class TableKind(ArchiveTable, Protocol):
    """A table of a certain format that may not exist yet."""

    def exists(self) -> bool:
        """Return whether there is a table of this format, created by `headrace archive` or not."""

    def create(self, name: str, schema: Any) -> None:
        """Create an empty table. It is no error if another process creates the table at the same time."""

    def open(self) -> ArchiveTable:
        """Open the table.

        Raises:
            ConfigError: The table does not exist, or was not created by `headrace archive`.
        """


def file_gone(file: ArchivedFile) -> HeadraceError:
    """Make the error for a file that does not exist although it should become part of a table."""
    return HeadraceError(
        f"{file.path} was deleted before it was committed: run `headrace archive clean` with a greater age"
    )
