"""The register of storages that a topic can name in `headrace.storage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from headrace.errors import ConfigError
from headrace.ports import FileSystem, OpenStorage, SegmentStorage
from headrace.registers import Register
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.segment_files import ArraySegment, StorageFileSystem, missing_of

ARRAY: Final = "array"
LINKED: Final = "linked"
FILES: Final = "files"

StorageFactory = Callable[[], SegmentStorage | FileSystem]


def _own_files() -> FileSystem:
    raise ConfigError("the storage 'files' is opened by the broker itself")


STORAGES: Final[Register[SegmentStorage | FileSystem]] = Register(
    "storage",
    "headrace.storages",
    "headrace.register_storage",
    {ARRAY: ArraySegment, LINKED: MemoryFileSystem, FILES: _own_files},
)


def register_storage(name: str, factory: StorageFactory) -> None:
    """Register a storage under a name, which topics can use in `headrace.storage`.

    Args:
        name: The name.
        factory: Returns an empty `headrace.ports.SegmentStorage`; a class without arguments does. Its records live as
            long as the process. For records that outlive it, return a whole data directory, a
            `headrace.ports.FileSystem`, such as `OsFileSystem` on another disk.

    Raises:
        ConfigError: The name or the factory cannot be used.
    """
    if name == FILES:
        raise ConfigError("the storage 'files' is the broker's own: choose another name")
    STORAGES.add(name, factory)


def storages(*, in_memory: bool, given: Mapping[str, StorageFactory] | None = None) -> OpenStorage:
    """Return the function with which a broker opens storages.

    Args:
        in_memory: Whether the broker has no data directory.
        given: Storages of this broker only, by name. They are looked up when a storage is opened.
    """

    def open_storage(name: str) -> FileSystem | None:
        if name == FILES and in_memory:
            raise ConfigError(
                "the storage 'files' needs a directory, and the broker is in memory: Broker(data=...)"
            )
        if name == (LINKED if in_memory else FILES):
            return None
        factory = (given or {}).get(name) or STORAGES.find(name)
        made = factory()
        if isinstance(made, SegmentStorage):
            return StorageFileSystem(name, cast("Callable[[], SegmentStorage]", factory))
        if not hasattr(made, "write_file"):
            raise ConfigError(f"the storage {name!r} is a {type(made).__name__}{missing_of(made)}")
        return made

    return open_storage
