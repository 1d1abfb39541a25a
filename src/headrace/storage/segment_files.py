"""Segments in memory as one growing array, and segments in a user's class, as files for the partition log.

The log works with named files. A storage knows no names: it keeps the bytes of one segment, and `roll` begins the next.
`StorageFileSystem` connects the two: it has the names, keeps the small files beside the segments in memory itself, and
gives every segment a storage.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Final

from headrace.ports import File, LogDirectory, SegmentStorage
from headrace.storage.memory_files import MemoryFileSystem
from headrace.types import Buffer

_SMALLEST_ARRAY: Final = 4 << 10
_SEGMENT: Final = ".log"


class ArraySegment:
    """A segment as one array that doubles when it is full; see `headrace.ports.SegmentStorage`.

    Any range is a single piece of the array. To grow, the array is copied; ranges that were returned keep the old
    array.
    """

    __slots__ = ("_array", "_size")

    def __init__(self) -> None:
        self._array = memoryview(bytearray(_SMALLEST_ARRAY))
        self._size = 0

    @property
    def size(self) -> int:
        """The size of the segment in bytes."""
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append copies of all buffers."""
        position = self._size
        end = position + sum(map(len, buffers))
        if end > len(self._array):
            self._move(max(end, 2 * len(self._array)))
        array = self._array
        for buffer in buffers:
            array[position : position + len(buffer)] = buffer
            position += len(buffer)
        self._size = end

    def _move(self, capacity: int) -> None:
        array = memoryview(bytearray(capacity))
        array[: self._size] = self._array[: self._size]
        self._array = array

    def read(self, position: int, size: int) -> Buffer:
        """Return a view of the bytes from `position` on."""
        return self._array[position : min(position + size, self._size)].toreadonly()

    def truncate(self, size: int) -> None:
        """Cut the segment. Later appends use another array, so that ranges that were returned do not change."""
        if size < self._size:
            self._size = size
            self._move(len(self._array))

    def roll(self) -> ArraySegment:
        """Return the storage of the next segment."""
        return ArraySegment()


class StoredFile:
    """A segment's storage as a file; see `headrace.ports.File`.

    Any exception of a storage that is no OSError becomes one: for the broker it is a failed disk.
    """

    __slots__ = ("_storage",)

    def __init__(self, storage: SegmentStorage) -> None:
        self._storage = storage

    @property
    def size(self) -> int:
        """The size of the segment in bytes."""
        return self._storage.size

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append one batch to the storage."""
        try:
            self._storage.append(buffers)
        except OSError:
            raise
        except Exception as error:
            raise self._failed("append", error) from error

    def buffers(self, position: int, size: int) -> Sequence[Buffer]:
        """Return the bytes from `position` on, as one piece."""
        try:
            piece = self._storage.read(position, size)
        except OSError:
            raise
        except Exception as error:
            raise self._failed("read", error) from error
        return [piece] if len(piece) else []

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of the bytes from `position` on."""
        return b"".join(self.buffers(position, size))

    def truncate(self, size: int) -> None:
        """Cut the segment to a size in bytes."""
        try:
            self._storage.truncate(size)
        except OSError:
            raise
        except Exception as error:
            raise self._failed("truncate", error) from error

    def sync(self) -> None:
        """Do nothing: a storage lives as long as the process."""

    def fileno(self) -> None:
        """Return None: there is no descriptor."""

    def close(self) -> None:
        """Do nothing: a storage is freed with the last reference."""

    def next_storage(self) -> SegmentStorage:
        """Return the storage of the next segment."""
        try:
            following = self._storage.roll()
        except OSError:
            raise
        except Exception as error:
            raise self._failed("roll", error) from error
        if not isinstance(following, SegmentStorage):
            raise self._failed(
                "roll", TypeError(f"{following!r} is no storage{missing_of(following)}")
            )
        return following

    def _failed(self, what: str, error: Exception) -> OSError:
        kind = type(self._storage).__name__
        return OSError(errno.EIO, f"{kind}.{what} failed: {error!r}")


def missing_of(made: object) -> str:
    """Return what an object lacks to be a storage, for an error message."""
    names = ("size", "append", "read", "truncate", "roll")
    missing = ", ".join(name for name in names if not hasattr(made, name))
    return f": it has no {missing} (see headrace.ports.SegmentStorage)"


class StorageFileSystem(MemoryFileSystem):
    """A directory tree in memory whose segments are in storages of one kind."""

    __slots__ = ("_active", "_factory", "_name")

    def __init__(self, name: str, factory: Callable[[], SegmentStorage]) -> None:
        """Keep segments in storages that `factory` makes. `name` is what operators see."""
        super().__init__()
        self._name = name
        self._factory = factory
        self._active: dict[str, StoredFile] = {}
        """The newest segment of each directory."""

    def describe(self) -> LogDirectory:
        """Return a name for this file system."""
        return LogDirectory(f"memory:{self._name}", in_memory=True)

    def _new_file(self, path: str) -> File:
        directory, _, name = path.rpartition("/")
        if _SEGMENT not in name:
            return super()._new_file(path)
        if not name.endswith(_SEGMENT):  # the output of compaction is beside the active segment
            return StoredFile(self._factory())
        active = self._active.get(directory)
        file = StoredFile(self._factory() if active is None else active.next_storage())
        self._active[directory] = file
        return file

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it."""
        super().remove_tree(path)
        self._active.pop(path, None)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory."""
        super().rename(old, new)
        self._active.pop(old, None)
