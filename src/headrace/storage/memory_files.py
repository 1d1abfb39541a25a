"""Files in memory, for `headrace dev`, embedded brokers and tests. Nothing survives the process.

A file is a list of extents: blocks of memory that double in size from 4 KiB to 1 MiB. Appended bytes never move and
never change, so `buffers` returns views of them. After a truncation the file gets new memory for what follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from headrace.ports import File, LogDirectory
from headrace.types import Buffer

_SMALLEST_EXTENT: Final = 4 << 10
_LARGEST_EXTENT: Final = 1 << 20


class MemoryFile:
    """An append-only file in memory; see `headrace.ports.File`."""

    __slots__ = ("_extents", "_free", "_size", "_starts")

    def __init__(self) -> None:
        self._extents: list[memoryview] = []
        self._starts: list[int] = []
        self._free = 0
        self._size = 0

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append copies of all buffers."""
        for buffer in buffers:
            size = len(buffer)
            if size > self._free:
                self._append_over_extents(memoryview(buffer))
            elif size:
                extent = self._extents[-1]
                start = len(extent) - self._free
                extent[start : start + size] = buffer
                self._free -= size
                self._size += size

    def _append_over_extents(self, view: memoryview) -> None:
        position = 0
        while position < len(view):
            if not self._free:
                wanted = max(_SMALLEST_EXTENT, self._size, len(view) - position)
                self._starts.append(self._size)
                self._extents.append(memoryview(bytearray(min(_LARGEST_EXTENT, wanted))))
                self._free = len(self._extents[-1])
            extent = self._extents[-1]
            start = len(extent) - self._free
            part = view[position : position + self._free]
            extent[start : start + len(part)] = part
            position += len(part)
            self._free -= len(part)
            self._size += len(part)

    def buffers(self, position: int, size: int) -> Sequence[Buffer]:
        """Return views of the bytes from `position` on, one per extent."""
        end = min(position + size, self._size)
        views: list[Buffer] = []
        index = bisect_right(self._starts, position) - 1
        while position < end:
            start = self._starts[index]
            view = self._extents[index][position - start : end - start].toreadonly()
            views.append(view)
            position += len(view)
            index += 1
        return views

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of the bytes from `position` on."""
        return b"".join(self.buffers(position, size))

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes. Views that were returned before keep their content."""
        if size >= self._size:
            return
        index = bisect_right(self._starts, size) - 1
        kept = self._extents[index][: size - self._starts[index]]
        del self._extents[index:], self._starts[index:]
        self._size = size - len(kept)
        self._free = 0
        self.append([bytes(kept)])

    def sync(self) -> None:
        """Do nothing: memory needs no sync."""

    def fileno(self) -> None:
        """Return None: there is no descriptor."""

    def close(self) -> None:
        """Do nothing: memory is freed with the last reference."""


class MemoryFileSystem:
    """A directory tree in memory; see `headrace.ports.FileSystem`."""

    __slots__ = ("_directories",)

    def __init__(self) -> None:
        self._directories: dict[str, dict[str, File | None]] = {"": {}}
        """The names in each directory, by path and name. None stands for a directory inside a directory."""

    def describe(self) -> LogDirectory:
        """Return a name for this file system, without the size of the memory."""
        return LogDirectory("memory", in_memory=True)

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file.

        FileNotFoundError if it does not exist, unless `create` is true and its directory exists.
        """
        directory, _, name = path.rpartition("/")
        entries = self._directories.get(directory, {})
        file = entries.get(name)
        if file is None:
            if not create or directory not in self._directories:
                raise FileNotFoundError(path)
            file = entries[name] = self._new_file(path)
        return file

    def _new_file(self, path: str) -> File:  # noqa: ARG002 - other kinds of files go by their names
        return MemoryFile()

    def read_file(self, path: str) -> bytes | None:
        """Return the whole content, or None when there is no such file."""
        file = self._file(path)
        return None if file is None else file.read(0, file.size)

    def _file(self, path: str) -> File | None:
        directory, _, name = path.rpartition("/")
        return self._directories.get(directory, {}).get(name)

    def write_file(self, path: str, content: bytes) -> None:
        """Replace the content of a file."""
        file = MemoryFile()
        file.append([content])
        self._put(path, file)

    def _put(self, path: str, file: File) -> None:
        directory, _, name = path.rpartition("/")
        self.make_directory(directory)
        self._directories[directory][name] = file

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; [] when it does not exist."""
        return sorted(self._directories.get(path, ()))

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        if path not in self._directories:
            parent, _, name = path.rpartition("/")
            self.make_directory(parent)
            self._directories[parent][name] = None
            self._directories[path] = {}

    def remove(self, path: str) -> None:
        """Remove a file. Does nothing if there is none."""
        if self._file(path) is not None:
            directory, _, name = path.rpartition("/")
            del self._directories[directory][name]

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it."""
        self._drop(path)

    def _drop(self, path: str) -> None:
        for name, file in self._directories.pop(path, {}).items():
            if file is None:
                self._drop(f"{path}/{name}")
        parent, _, name = path.rpartition("/")
        self._directories.get(parent, {}).pop(name, None)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory. One that has the new name is replaced."""
        file = self._file(old)
        if file is not None:
            self.remove(old)
            self._put(new, file)
            return
        if old not in self._directories:
            raise FileNotFoundError(old)
        entries = self._directories[old]
        self._drop(new)
        self.make_directory(new)
        for name, inner in list(entries.items()):
            if inner is None:
                self.rename(f"{old}/{name}", f"{new}/{name}")
            else:
                self._put(f"{new}/{name}", inner)
        self._drop(old)

    def sync_directory(self, path: str) -> None:
        """Do nothing: memory needs no sync."""
