"""The order of release: entries by delivery time and arrival. Only the nearest entries are in memory.

A heap holds up to `limit` entries of 28 bytes, which sort as bytes. When the heap is full, its later half is written
once to a file as a sorted run. The run is read again in pages when its turn comes. So a queue of `n` entries has in
memory the heap, and one entry and at most one page of each of its `2 n / limit` runs. The files only save memory: after
a restart the queue is filled again from the schedule. Their names end with `.tmp`, so recovery removes them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from headrace.core.scheduled.schedule_batch import ENTRY
from headrace.ports import File, FileSystem

LIMIT: Final = 65_536
"""The largest number of entries in memory: about 70 bytes each."""
PAGE_ENTRIES: Final = 64
FILE_BYTES: Final = 32 << 20
"""The size in bytes at which a new file is begun. A file is removed when the last of its runs is used up."""
_SIZE: Final = ENTRY.size


class _RunFile:
    """A file with one run after the other."""

    __slots__ = ("file", "path", "runs")

    def __init__(self, path: str, file: File) -> None:
        self.path = path
        self.file = file
        self.runs = 0


class _Run:
    """Sorted entries in a file, and how far they have been read."""

    __slots__ = ("_at", "_end", "_page", "_position", "home")

    def __init__(self, home: _RunFile, position: int, size: int) -> None:
        self.home = home
        self._position = position
        self._end = position + size
        self._page = b""
        self._at = 0

    def next(self) -> bytes | None:
        if self._at == len(self._page):
            size = min(PAGE_ENTRIES * _SIZE, self._end - self._position)
            self._page = self.home.file.read(self._position, size) if size else b""
            self._position += size
            self._at = 0
            if not size:
                return None
        entry = self._page[self._at : self._at + _SIZE]
        self._at += _SIZE
        return entry


class DueQueue:
    """Entries in the order of their delivery times."""

    __slots__ = ("_count", "_directory", "_files", "_heads", "_near", "_number", "_open", "limit")

    def __init__(self, files: FileSystem, directory: str, limit: int = LIMIT) -> None:
        """Keep at most `limit` entries in memory, and the others in files of a directory."""
        self.limit = limit
        self._files = files
        self._directory = directory
        self._near: list[bytes] = []
        self._heads: list[tuple[bytes, int, _Run]] = []
        self._open: _RunFile | None = None
        self._number = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def in_memory(self) -> int:
        """The number of entries in memory, without pages of runs."""
        return len(self._near) + len(self._heads)

    def add(self, entries: Sequence[bytes]) -> None:
        """Add entries, which need not be sorted."""
        near, push = self._near, heapq.heappush
        for entry in entries:
            push(near, entry)
        self._count += len(entries)
        while len(self._near) > self.limit:
            try:
                self._spill()
            except OSError:
                # Without space on the disk more entries stay in memory, so that none is lost.
                self.limit *= 2

    def peek(self) -> bytes | None:
        """Return the entry with the earliest delivery time, None without entries."""
        if self._heads and (not self._near or self._heads[0][0] < self._near[0]):
            return self._heads[0][0]
        return self._near[0] if self._near else None

    def pop(self) -> bytes:
        """Remove and return the entry with the earliest delivery time.

        Raises:
            OSError: The entry after it cannot be read.
        """
        if not self._heads or (self._near and self._near[0] < self._heads[0][0]):
            self._count -= 1
            return heapq.heappop(self._near)
        entry, number, run = self._heads[0]
        following = run.next()
        self._count -= 1
        if following is not None:
            heapq.heapreplace(self._heads, (following, number, run))
            return entry
        heapq.heappop(self._heads)
        run.home.runs -= 1
        if not run.home.runs and run.home is not self._open:
            self._remove(run.home)
        return entry

    def clear(self) -> None:
        """Forget all entries, and remove the files."""
        for home in {id(run.home): run.home for *_, run in self._heads}.values():
            self._remove(home)
        if self._open is not None and not self._open.runs:
            self._remove(self._open)
        self._near, self._heads, self._open, self._count = [], [], None, 0

    def _spill(self) -> None:
        """Write the later half of the entries in memory to a file."""
        home = self._home()
        ordered = sorted(self._near)
        kept = len(ordered) // 2
        content = b"".join(ordered[kept:])
        position = home.file.size
        home.file.append([content])
        run = _Run(home, position, len(content))
        first = run.next()
        assert first is not None
        home.runs += 1
        self._number += 1
        heapq.heappush(self._heads, (first, self._number, run))
        self._near = ordered[:kept]  # a sorted list is a heap

    def _home(self) -> _RunFile:
        home = self._open
        if home is None or home.file.size >= FILE_BYTES:
            if home is not None and not home.runs:
                self._remove(home)
            self._number += 1
            path = f"{self._directory}/{self._number:010}.run.tmp"
            self._files.remove(path)
            self._files.make_directory(self._directory)
            home = self._open = _RunFile(path, self._files.open(path, create=True))
        return home

    def _remove(self, home: _RunFile) -> None:
        home.file.close()
        self._files.remove(home.path)
