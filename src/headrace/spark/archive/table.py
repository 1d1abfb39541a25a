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
    """Find the format of an archive and open it.

    Args:
        location: A directory, or the address of an object store as `s3://BUCKET/TABLE`.
        catalog: The address of the Iceberg catalog; None is a catalog in the table's directory.

    Raises:
        ConfigError: There is no archive at the location.
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
    """Open an archive whose format is known.

    Raises:
        ConfigError: There is no archive of this format at the location.
    """
    return _implementation(kind, open_location(location), catalog).open()


def create_table(
    kind: str,
    location: str | Path | TableLocation,
    name: str | None,
    schema: Any,
    catalog: str | None = None,
) -> ArchiveTable:
    """Open an archive, or create it.

    Args:
        kind: "delta" or "iceberg".
        location: A directory, or the address of an object store as `s3://BUCKET/TABLE`.
        name: The name of the archive, which the table stores. None uses the stored name; a new archive is named after
            its directory, with a random suffix. The archive's progress is committed to a group of this name.
        schema: The columns, as an Arrow schema.
        catalog: The address of the Iceberg catalog, a database; None is a SQLite file in the table's directory.

    Raises:
        ConfigError: The location has another table, or commits to the store are not safe.
    """
    root = open_location(location)
    found = _implementation(kind, root, catalog)
    found.check_commits()
    if not found.exists():
        _check_free(root, kind)
        try:
            found.create(name or f"archive-{root.name}-{uuid.uuid4().hex[:6]}", schema)
        except HeadraceError:
            if not found.exists():  # otherwise another process created it
                raise
    table = found.open()
    kept = table.snapshot().name
    if name is not None and kept != name:
        raise ConfigError(f"{root} is the archive {kept!r}, not {name!r}: leave the name out")
    if not table.schema().equals(schema):
        raise ConfigError(
            f"the archive in {root} has other columns: {', '.join(table.schema().names)}. "
            "Write to another table, or use the options with which the table was created"
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
    """Check that a table can be created at a location. An incomplete table of the same format is allowed."""
    if isinstance(root, Directory) and root.path.exists() and not root.path.is_dir():
        raise ConfigError(f"{root} is no directory")
    occupied = root.occupied()  # checked before the marks, which another process may be creating
    for kind, mark in _MARKS.items():
        if root.find(mark) is not None:
            if kind == wanted:
                return
            raise ConfigError(f"{root} is a table of format {kind}")
    if occupied:
        raise ConfigError(f"{root} is not empty and no archive: name another directory")
