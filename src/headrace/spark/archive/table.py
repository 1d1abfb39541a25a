"""Find, open and create the table of an archive."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.archive.addresses import open_location
from headrace.spark.archive.directory import Directory
from headrace.spark.archive.table_format import ArchiveTable, TableKind
from headrace.spark.archive.table_location import TableLocation

KINDS: Final = ("delta", "iceberg")
_MARKS: Final = {"delta": "_delta_log", "iceberg": "catalog.db"}


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
