"""What an archive needs of a table format: its files, how far it is, and commits that happen whole or not at all.

How far the archive is stands in the table itself, in the commit that adds the files. There is no other state to lose:
a run begins where the table ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.files import ArchivedFile, Source, WrittenFile

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
    recorded: Mapping[Source, int] = field(default_factory=dict)
    """The next offset of each partition, as the commits say."""

    def positions(self) -> dict[Source, int]:
        """Return the next offset of each partition that is archived."""
        found = {file.source: file.end for file in self.files}
        return {**found, **self.recorded}


@dataclass(frozen=True)
class BatchCommit:
    """What one batch changes: all of it, or nothing."""

    batch: int
    files: tuple[WrittenFile, ...]
    positions: Mapping[Source, int]


class ArchiveTable(Protocol):
    """A table that archives topics. Paths of files are relative to `root`."""

    kind: str
    root: Path

    def snapshot(self, candidates: Collection[Source] = ()) -> Snapshot:
        """Return the table as it is now.

        Args:
            candidates: Partitions to look up even where the table has no files of them.
        """

    def schema(self) -> Any:
        """Return the columns, as an Arrow schema."""

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


def file_gone(file: ArchivedFile) -> HeadraceError:
    """Return what is raised when a file that is to become part of a table is not there."""
    return HeadraceError(
        f"{file.path} was deleted before it was committed: let `headrace archive clean` spare files for longer"
    )


def find_table(location: str | Path) -> ArchiveTable:
    """Open an archive of whichever format.

    Raises:
        ConfigError: There is none at that place.
    """
    path = local_path(location)
    for kind, mark in _MARKS.items():
        if (path / mark).exists():
            return open_table(kind, path)
    raise ConfigError(f"there is no archive in {path}")


def open_table(kind: str, location: str | Path) -> ArchiveTable:
    """Open an archive of a format.

    Raises:
        ConfigError: There is none at that place.
    """
    table: ArchiveTable = _implementation(kind).open(local_path(location))
    return table


def create_table(kind: str, location: str | Path, name: str | None, schema: Any) -> ArchiveTable:
    """Open an archive, or make it.

    Args:
        kind: "delta" or "iceberg".
        location: A directory.
        name: Of the archive, which the table keeps; None is that of the table or, for a new one, of its directory.
        schema: Its columns, as an Arrow schema.

    Raises:
        ConfigError: There is another table at that place.
    """
    implementation = _implementation(kind)
    path = local_path(location)
    if not implementation.exists(path):
        _check_free(path, kind)
        implementation.create(path, name or f"archive-{path.name}", schema)
    table: ArchiveTable = implementation.open(path)
    found = table.snapshot().name
    if name is not None and found != name:
        raise ConfigError(f"{path} is the archive {found!r}, not {name!r}: leave the name out")
    if not table.schema().equals(schema):
        raise ConfigError(
            f"the archive in {path} has other columns: {', '.join(table.schema().names)}. "
            "Write to another table, or with the options that it was made with"
        )
    return table


def local_path(location: str | Path) -> Path:
    """Return a table's directory.

    Raises:
        ConfigError: It is the address of a store, which archives cannot be in.
    """
    text = str(location)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        raise ConfigError(
            f"{location} is no directory: an archive lies in a file system that driver and executors share"
        )
    return Path(text).absolute()


def _implementation(kind: str) -> Any:
    try:
        if kind == "delta":
            from headrace.spark.archive.delta import DeltaArchive  # noqa: PLC0415 - needs its library

            return DeltaArchive
        if kind == "iceberg":
            from headrace.spark.archive.iceberg import IcebergArchive  # noqa: PLC0415 - needs its library

            return IcebergArchive
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'headrace[archive]'") from None
    raise ConfigError(f"there is no table format {kind!r}: known are {', '.join(KINDS)}")


def _check_free(path: Path, wanted: str) -> None:
    """Check that a table may be made there; what is left of one whose making was killed is no hindrance."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is no directory")
    for kind, mark in _MARKS.items():
        if (path / mark).exists():
            if kind == wanted:
                return
            raise ConfigError(f"{path} is a table of format {kind}")
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty and no archive: name another directory")
