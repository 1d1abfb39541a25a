"""The bounds of the change log of a metadata store: which entries the store keeps, and which it prunes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from headrace.ports import MetadataBatch

ENTRIES_LIMIT: Final = 1_000
"""The greatest number of entries in a change log."""
BYTES_LIMIT: Final = 1024 * 1024
"""The greatest size of a change log in bytes: the keys and values of all entries."""
_LEFT: Final = 0.75
"""The share of both limits that a pruned log has at most. So most commits prune nothing."""


class KeptChanges:
    """The versions and sizes of the entries in a change log. The newest entry is always kept.

    An entry has the version that its commit gave to the written keys. Versions of entries are consecutive.
    """

    __slots__ = ("_bytes", "_entries_limit", "_sizes", "pruned")

    def __init__(self, entries_limit: int = ENTRIES_LIMIT) -> None:
        """Begin with an empty log.

        Args:
            entries_limit: The greatest number of entries.
        """
        self._entries_limit = entries_limit
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self.pruned = 0
        """The version of the last entry that was pruned; 0 if none was."""

    def load(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Replace the entries by stored ones: version and size in bytes of each, oldest first."""
        self._sizes = deque(sizes)
        self._bytes = sum(size for _, size in self._sizes)
        if self._sizes:
            self.pruned = self._sizes[0][0] - 1

    def pruned_by(self, size: int) -> int:
        """Return the version of the last entry to prune with a new entry of `size` bytes; `pruned` if all stay."""
        entries, total, pruned = len(self._sizes) + 1, self._bytes + size, self.pruned
        if entries <= self._entries_limit and total <= BYTES_LIMIT:
            return pruned
        for version, old in self._sizes:
            if entries <= self._entries_limit * _LEFT and total <= BYTES_LIMIT * _LEFT:
                break
            entries, total, pruned = entries - 1, total - old, version
        return pruned

    def append(self, version: int, size: int) -> None:
        """Count a new entry, and forget the entries that it prunes."""
        self.pruned = self.pruned_by(size)
        while self._sizes and self._sizes[0][0] <= self.pruned:
            self._bytes -= self._sizes.popleft()[1]
        self._sizes.append((version, size))
        self._bytes += size


def size_of(change: MetadataBatch) -> int:
    """Return the size of an entry in bytes: its keys and values."""
    return sum(len(e.key) + len(e.value) for e in change.puts) + sum(map(len, change.deletes))
