"""The `.ttlindex` file of one segment. It is read when it is first needed, and leaves memory when the segment closes.

Only topics with `headrace.ttl.enable` have such files. A file that is missing or damaged makes reads slower, not wrong.
"""

from __future__ import annotations

import sys
from typing import Final

from headrace.core.log.files.caches import write_cache
from headrace.core.log.index.expiry_index import EXPIRY_INDEX, ExpiryIndex
from headrace.ports import FileSystem
from headrace.records.expiry import NEVER, UNKNOWN, Expiry

_NOT_DESCRIBED: Final = -1, UNKNOWN, NEVER


class SegmentExpiries:
    """The expiry times of the records of one segment, as far as they are known.

    `size` in the methods is always the size of the segment in bytes.
    """

    __slots__ = ("_base_offset", "_described", "_directory", "_files", "_index")

    def __init__(self, files: FileSystem, directory: str, base_offset: int) -> None:
        """Describe the segment with this base offset."""
        self._files = files
        self._directory = directory
        self._base_offset = base_offset
        self._index: ExpiryIndex | None = None
        """The content of the file, with the batches appended since it was written. None if it is not in memory."""
        self._described = _NOT_DESCRIBED
        """A size of the segment, and `summary` and `half_expired_ms` at that size; -1 as size before the first call."""

    @property
    def _path(self) -> str:
        return EXPIRY_INDEX.path(self._directory, self._base_offset)

    def index(self, size: int) -> ExpiryIndex:
        """Return the index, read from its file if it is not in memory."""
        if self._index is None:
            content = self._files.read_file(self._path)
            self._index = ExpiryIndex.decode(content, base_offset=self._base_offset, size=size)
        return self._index

    def summary(self, size: int) -> Expiry:
        """Return when the first and the last record of the segment expire."""
        return self._describe(size)[1]

    def half_expired_ms(self, size: int) -> int:
        """Return when half of the segment's bytes lie in blocks of which all records have expired."""
        return self._describe(size)[2]

    def _describe(self, size: int) -> tuple[int, Expiry, int]:
        if self._described[0] != size or self._index is not None:
            kept, index = self._index, self.index(size)
            self._described = size, index.summary(size), index.half_expired_ms(size)
            self._index = kept  # a segment that is not in use keeps no index in memory
        return self._described

    def adopt(self, index: ExpiryIndex | None) -> None:
        """Use this index from now on. With None the file is read again when it is needed."""
        self._index = index

    def learn(self, index: ExpiryIndex, size: int, *, keep: bool) -> None:
        """Write an index that a reader of the whole segment has made.

        Args:
            index: The index.
            size: The segment's size in bytes.
            keep: Whether the index stays in memory: the segment is in use.
        """
        self._index = index
        self.write()
        if not keep:
            self.unload(size)

    def write(self) -> None:
        """Write the file if the index is in memory and describes something. The file may get lost."""
        if self._index is not None and self._index.end:
            write_cache(self._files, self._path, self._index.encode(self._base_offset))

    def cut(self, size: int) -> None:
        """Remove from the file what it says about bytes from `size` on: other batches may lie there now."""
        content = self._files.read_file(self._path)
        if content is not None:
            index = ExpiryIndex.decode(content, base_offset=self._base_offset, size=sys.maxsize)
            index.cut(size)
            self._files.write_file(self._path, index.encode(self._base_offset))

    def forget_end(self, size: int, position: int) -> None:
        """Forget the bytes from a position on. Later bytes there belong to other batches."""
        self.index(size).cut(position)
        self._described = _NOT_DESCRIBED

    def unload(self, size: int) -> None:
        """Drop the index from memory. `summary` and `half_expired_ms` stay."""
        if self._index is not None:
            self._describe(size)
            self._index = None
