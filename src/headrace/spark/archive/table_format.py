"""What an archive needs of a table format: its files, how far it is, and commits that happen whole or not at all.

How far the archive is stands in the table itself, in the commit that adds the files. There is no other state to lose:
a run begins where the table ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import HeadraceError
from headrace.spark.archive.files import ArchivedFile, ArchivedPartition, WrittenFile
from headrace.spark.archive.table_location import TableLocation


class FinalError(HeadraceError):
    """What trying again would not help."""


class ConflictError(FinalError):
    """Somebody else has changed the table meanwhile, so that what was to be committed does not fit any more."""


@dataclass(frozen=True)
class Snapshot:
    """A state of the table."""

    name: str
    """The archive's, given when the table was made."""
    batch: int
    """The number of the last batch; 0 before the first."""
    files: tuple[ArchivedFile, ...]
    """Sorted by partition and offset."""
    foreign: tuple[str, ...] = ()
    """Files that another program has put there."""
    recorded: Mapping[ArchivedPartition, int] = field(default_factory=dict)
    """The next offset of each partition, as the commits say."""

    def positions(self) -> dict[ArchivedPartition, int]:
        """Return the next offset of each partition that is archived."""
        found = {file.source: file.end for file in self.files}
        return {**found, **self.recorded}


@dataclass(frozen=True)
class BatchCommit:
    """What one batch changes: all of it, or nothing."""

    batch: int
    files: tuple[WrittenFile, ...]
    positions: Mapping[ArchivedPartition, int]


class ArchiveTable(Protocol):
    """A table that archives topics. Paths of files are relative to `root`."""

    kind: str
    root: TableLocation

    def snapshot(self, candidates: Collection[ArchivedPartition] = ()) -> Snapshot:
        """Return the table as it is now.

        Args:
            candidates: Partitions to look up even where the table has no files of them.
        """

    def schema(self) -> Any:
        """Return the columns, as an Arrow schema."""

    def check_commits(self) -> None:
        """Check that of two who commit at the same time one is refused.

        Raises:
            ConfigError: The store does not see to that.
        """

    def append(self, commit: BatchCommit) -> None:
        """Add a batch's files and positions in one commit; a batch that is in the table already changes nothing.

        Raises:
            ConflictError: Another archiver has committed a batch of that number.
        """

    def replace(self, removed: Sequence[ArchivedFile], added: Sequence[WrittenFile]) -> None:
        """Put files in the place of others that hold the same records, in one commit.

        Raises:
            ConflictError: One of those to be removed is not in the table any more.
        """

    def delete_orphans(self, age_ms: int, *, dry_run: bool) -> list[str]:
        """Delete files that have not belonged to the table for so long, if they ever did; return their paths."""


class TableKind(ArchiveTable, Protocol):
    """A table that may not be there yet."""

    def exists(self) -> bool:
        """Whether there is a table of this format, of an archive or not."""

    def create(self, name: str, schema: Any) -> None:
        """Make an empty table; one that somebody else makes at the same time is as good."""

    def open(self) -> ArchiveTable:
        """Return it.

        Raises:
            ConfigError: There is none.
        """


def file_gone(file: ArchivedFile) -> HeadraceError:
    """Return what is raised when a file that is to become part of a table is not there."""
    return HeadraceError(
        f"{file.path} was deleted before it was committed: let `headrace archive clean` spare files for longer"
    )
