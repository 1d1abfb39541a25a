"""The stores of a served broker: log directories and metadata, on disk or in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.broker.log_dirs.log_dirs import UnusableDirectory
from headrace.core.meta_properties import META_FILE
from headrace.errors import ConfigError, StorageError
from headrace.ports import FileSystem, Journal, MetadataStore, OpenStorage
from headrace.server.data_directory import METADATA_FILE, broker_directories
from headrace.storage.registry import StorageFactory, storages

_LOCK_FILE: Final = ".lock"
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of a broker: log directories and metadata.

    Attributes:
        files: The first log directory.
        further: The other log directories.
        metadata: The metadata store. It is in the first directory.
        storages: Opens the storage that a topic names.
    """

    files: FileSystem
    further: Sequence[FileSystem | UnusableDirectory]
    metadata: MetadataStore
    storages: OpenStorage

    def close(self) -> None:
        """Close the metadata store, and release the locks of the directories."""
        self.metadata.close()
        for files in (self.files, *self.further):
            unlock = getattr(
                files, "unlock", None
            )  # directories that are in memory or missing have no lock
            if unlock is not None:
                unlock()


def open_stores(
    data: Sequence[Path],
    given: Mapping[str, StorageFactory] | None = None,
    open_shared: Callable[[], MetadataStore] | None = None,
) -> Stores:
    """Lock the log directories for this process, and open the metadata store in the first one.

    Args:
        data: The directories; empty to keep everything in memory.
        given: The storages that only this broker knows, by name.
        open_shared: Opens the metadata store that the brokers of a cluster share; None for a store of its own.

    Raises:
        ConfigError: A directory is named twice.
        StorageError: A directory is in use, or the first directory or its metadata cannot be read.
    """
    if not data:
        from headrace.metadata_stores.memory import MemoryMetadataStore  # noqa: PLC0415 - only what is used
        from headrace.storage.memory_files import MemoryFileSystem  # noqa: PLC0415 - only what is used

        opened = storages(in_memory=True, given=given)
        return Stores(MemoryFileSystem(), (), MemoryMetadataStore(), opened)
    first, *others = data
    _check_names(data)
    if open_shared is None:
        _check_metadata(data)
    try:
        files = _open(first)
    except OSError as error:
        raise StorageError(f"cannot use the data directory {first}: {error}") from error
    further = [_open_further(path) for path in others]
    opened = storages(in_memory=False, given=given)
    if open_shared is not None:
        return Stores(files, further, open_shared(), opened)
    from headrace.metadata_stores.sqlite import SqliteMetadataStore  # noqa: PLC0415 - only what is used

    return Stores(files, further, SqliteMetadataStore(first / METADATA_FILE), opened)


def boot_id(path: Path = _BOOT_FILE) -> str | None:
    """Return an id that changes when the machine starts; None if this system has none."""
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def warn_of_exposed(data: Sequence[Path], journal: Journal) -> None:
    """Warn of data directories that other accounts of the machine can read or change in spite of the ACLs."""
    from headrace.storage.permissions import exposure  # noqa: PLC0415 - not with data in memory

    for path in data:
        with contextlib.suppress(OSError):  # it is out of service, and reported elsewhere
            if remedy := exposure(path):
                journal.warning("data_directory_exposed", directory=str(path), remedy=remedy)


def _check_names(data: Sequence[Path]) -> None:
    resolved: dict[Path, Path] = {}
    for path in data:
        other = resolved.setdefault(path.resolve(), path)
        if other is not path:
            raise ConfigError(f"{path} is named twice as a data directory")


def _check_metadata(data: Sequence[Path]) -> None:
    """Refuse directories whose metadata are elsewhere, or belong to a cluster."""
    first, *others = data
    if (brokers := broker_directories(first)) and not (first / META_FILE).exists():
        raise StorageError(
            f"{first} has the data of a cluster of {len(brokers)} brokers: start it with --brokers {max(brokers)}"
        )
    if not (first / METADATA_FILE).exists():
        for path in others:
            if (path / META_FILE).exists():
                raise StorageError(
                    f"the first data directory, {first}, has no {METADATA_FILE}, though {path} is in use by a "
                    "broker already: name the directory with the metadata first, and see that its disk is mounted"
                )


def _open(path: Path) -> FileSystem:
    from headrace.storage.os_files import OsFileSystem  # noqa: PLC0415 - not with data in memory

    files = OsFileSystem(path)
    lock_path = path / _LOCK_FILE
    try:
        files.lock()
    except StorageError as error:
        with contextlib.suppress(OSError):
            raise StorageError(f"{error} (held by {lock_path.read_text().strip()})") from None
        raise
    lock_path.write_text(f"pid {os.getpid()}\n")
    return files


def _open_further(path: Path) -> FileSystem | UnusableDirectory:
    try:
        return _open(path)
    except OSError as error:
        return UnusableDirectory(str(path.absolute()), error)
