"""What an archive needs of a table format: its files, how far it is, and commits that happen whole or not at all.

How far the archive is stands in the table itself, in the commit that adds the files. There is no other state to lose:
a run begins where the table ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.files import ArchivedFile, ArchivedPartition, WrittenFile
from headrace.spark.archive.table_location import Directory, TableLocation, open_location

KINDS: Final = ("delta", "iceberg")
_MARKS: Final = {"delta": "_delta_log", "iceberg": "catalog.db"}


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


def find_table(location: str | Path | TableLocation, catalog: str | None = None) -> ArchiveTable:
    """Open an archive of whichever format.

    Raises:
        ConfigError: There is none at that place.
    """
    found = open_location(location)
    for kind, mark in _MARKS.items():
        if found.find(mark) is not None:
            return open_table(kind, found, catalog)
    if catalog is not None:
        return open_table("iceberg", found, catalog)
    hint = "" if found.local else "; if it is of format iceberg, name its catalog"
    raise ConfigError(f"there is no archive in {found}{hint}")


def open_table(
    kind: str, location: str | Path | TableLocation, catalog: str | None = None
) -> ArchiveTable:
    """Open an archive of a format.

    Raises:
        ConfigError: There is none at that place.
    """
    return _implementation(kind, open_location(location), catalog).open()


def create_table(
    kind: str,
    location: str | Path | TableLocation,
    name: str | None,
    schema: Any,
    catalog: str | None = None,
) -> ArchiveTable:
    """Open an archive, or make it.

    Args:
        kind: "delta" or "iceberg".
        location: A directory, or the address of a store as `s3://BUCKET/TABLE`.
        name: Of the archive, which the table keeps; None is that of the table or, for a new one, of its directory
            with some letters behind it, for a group of this name is told how far the archive is.
        schema: Its columns, as an Arrow schema.
        catalog: Of Iceberg, as the address of a database; None is one in SQLite beside the data.

    Raises:
        ConfigError: There is another table at that place, or the store is none where commits are safe.
    """
    root = open_location(location)
    found = _implementation(kind, root, catalog)
    found.check_commits()
    if not found.exists():
        _check_free(root, kind)
        try:
            found.create(name or f"archive-{root.name}-{uuid.uuid4().hex[:6]}", schema)
        except HeadraceError:
            if not found.exists():  # else somebody else was faster
                raise
    table = found.open()
    kept = table.snapshot().name
    if name is not None and kept != name:
        raise ConfigError(f"{root} is the archive {kept!r}, not {name!r}: leave the name out")
    if not table.schema().equals(schema):
        raise ConfigError(
            f"the archive in {root} has other columns: {', '.join(table.schema().names)}. "
            "Write to another table, or with the options that it was made with"
        )
    return table


def _implementation(kind: str, root: TableLocation, catalog: str | None) -> TableKind:
    try:
        if kind == "delta":
            from headrace.spark.archive.delta import DeltaArchive

            return DeltaArchive(root)
        if kind == "iceberg":
            from headrace.spark.archive.iceberg import IcebergArchive

            return IcebergArchive(root, catalog)
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'headrace[archive]'") from None
    raise ConfigError(f"there is no table format {kind!r}: known are {', '.join(KINDS)}")


def _check_free(root: TableLocation, wanted: str) -> None:
    """Check that a table may be made there; what is left of one whose making was killed is no hindrance."""
    if isinstance(root, Directory) and root.path.exists() and not root.path.is_dir():
        raise ConfigError(f"{root} is no directory")
    occupied = root.occupied()  # before marks are looked for, which somebody else may be making
    for kind, mark in _MARKS.items():
        if root.find(mark) is not None:
            if kind == wanted:
                return
            raise ConfigError(f"{root} is a table of format {kind}")
    if occupied:
        raise ConfigError(f"{root} is not empty and no archive: name another directory")
