"""The register of storages: what a topic's `headrace.storage` may name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final, cast

from headrace.errors import ConfigError
from headrace.ports import FileSystem, OpenStorage, SegmentStorage
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.segment_files import ArraySegment, StorageFileSystem, missing_of

ENTRY_POINTS: Final = "headrace.storages"
ARRAY: Final = "array"
LINKED: Final = "linked"
FILES: Final = "files"

StorageFactory = Callable[[], SegmentStorage | FileSystem]

_FACTORIES: dict[str, StorageFactory] = {ARRAY: ArraySegment, LINKED: MemoryFileSystem}


def register_storage(name: str, factory: StorageFactory) -> None:
    """Make a storage known under a name, which then may stand in a topic's `headrace.storage`.

    Args:
        name: The name.
        factory: Returns an empty `headrace.ports.SegmentStorage`; a class without arguments does. Records in it live as
            long as the process. For records that outlive it, return a whole log directory, a
            `headrace.ports.FileSystem`, such as `OsFileSystem` on another disk.
    """
    if name == FILES:
        raise ConfigError("the storage 'files' is the broker's own: choose another name")
    _FACTORIES[name] = factory


def storages(*, in_memory: bool) -> OpenStorage:
    """Return what opens storages for a broker.

    Args:
        in_memory: Whether the broker has no directory.
    """

    def open_storage(name: str) -> FileSystem | None:
        if name == FILES and in_memory:
            raise ConfigError(
                "the storage 'files' needs a directory, and the broker is in memory: Broker(data=...)"
            )
        if name == (LINKED if in_memory else FILES):
            return None
        factory = _factory(name)
        made = factory()
        if isinstance(made, SegmentStorage):
            return StorageFileSystem(name, cast("Callable[[], SegmentStorage]", factory))
        if not hasattr(made, "write_file"):
            raise ConfigError(f"the storage {name!r} is a {type(made).__name__}{missing_of(made)}")
        return made

    return open_storage


def _factory(name: str) -> StorageFactory:
    factory = _FACTORIES.get(name)
    if factory is None:
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            loaded: StorageFactory = entry.load()
            _FACTORIES[name] = loaded
            return loaded
        known = ", ".join(sorted({*_FACTORIES, FILES}))
        raise ConfigError(
            f"no storage is called {name!r}: known are {known}; one of your own is made known by "
            f"headrace.register_storage(name, class) or an entry point in {ENTRY_POINTS}"
        )
    return factory
