"""Files in memory: for `headrace dev`, embedded brokers and tests. Nothing survives the process.

A file is a list of extents: blocks of memory that double in size from 4 KiB to 1 MiB. Appended bytes never move and
never change, so `buffers` hands out views of them; a truncation gives the file fresh memory for what follows.
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
        """Bytes in the file."""
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
        """Cut the file to `size` bytes; views handed out before keep what they show."""
        if size >= self._size:
            return
        index = bisect_right(self._starts, size) - 1
        kept = self._extents[index][: size - self._starts[index]]
        del self._extents[index:], self._starts[index:]
        self._size = size - len(kept)
        self._free = 0
        self.append([bytes(kept)])

    def sync(self) -> None:
        """Do nothing: memory is as stable as it gets."""

    def fileno(self) -> None:
        """Return None: there is no descriptor."""

    def close(self) -> None:
        """Do nothing: memory is freed with the last reference."""


class MemoryFileSystem:
    """A directory tree in memory; see `headrace.ports.FileSystem`."""

    __slots__ = ("_directories", "_files")

    def __init__(self) -> None:
        self._files: dict[str, File] = {}
        self._directories: set[str] = {""}

    def describe(self) -> LogDirectory:
        """Return a name for it; how much memory there is, is not its business."""
        return LogDirectory("memory", in_memory=True)

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file; FileNotFoundError unless it exists or `create` is true and its directory exists."""
        file = self._files.get(path)
        if file is None:
            if not create or path.rpartition("/")[0] not in self._directories:
                raise FileNotFoundError(path)
            file = self._files[path] = self._new_file(path)
        return file

    def _new_file(self, path: str) -> File:  # noqa: ARG002 - other kinds of files go by their names
        return MemoryFile()

    def read_file(self, path: str) -> bytes | None:
        """Return the whole content, or None when there is no such file."""
        file = self._files.get(path)
        return None if file is None else file.read(0, file.size)

    def write_file(self, path: str, content: bytes) -> None:
        """Replace a file's content."""
        file = MemoryFile()
        file.append([content])
        self._files[path] = file

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; [] when it does not exist."""
        prefix = f"{path}/" if path else ""
        entries = (*self._files, *self._directories)
        names = {entry[len(prefix) :] for entry in entries if entry.startswith(prefix)}
        return sorted(name for name in names if name and "/" not in name)

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        parts = path.split("/")
        self._directories.update("/".join(parts[: index + 1]) for index in range(len(parts)))

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is gone."""
        self._files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it."""
        prefix = f"{path}/"
        self._files = {
            name: file for name, file in self._files.items() if not name.startswith(prefix)
        }
        self._directories = {
            name for name in self._directories if name != path and not name.startswith(prefix)
        }

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory; what had the new name is replaced."""
        if old in self._files:
            self._files[new] = self._files.pop(old)
            return
        if old not in self._directories:
            raise FileNotFoundError(old)
        prefix = f"{old}/"
        self._files = {
            f"{new}/{name[len(prefix) :]}" if name.startswith(prefix) else name: file
            for name, file in self._files.items()
        }
        self._directories = {
            f"{new}{name[len(old) :]}" if name == old or name.startswith(prefix) else name
            for name in self._directories
        }

    def sync_directory(self, path: str) -> None:
        """Do nothing: memory is as stable as it gets."""
