"""The content of a metadata store in the memory of a broker, with the newest changes: what the watches read."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metadata_stores.change_log import KeptChanges
from headrace.ports import MetadataBatch, MetadataEntry


class Replica:
    """All entries, and the newest changes. The versions count the changes that have arrived."""

    __slots__ = ("_changes", "_entries", "_kept", "is_filled", "version")

    def __init__(self) -> None:
        """Begin without entries and changes."""
        self._entries: dict[str, MetadataEntry] = {}
        self._changes: dict[int, MetadataBatch] = {}
        self._kept = KeptChanges()
        self.version = 0
        """The number of changes that have arrived."""
        self.is_filled = False
        """Whether the first snapshot has arrived."""

    def apply(self, batch: MetadataBatch, size: int) -> None:
        """Apply a change.

        Args:
            batch: The change.
            size: The size in bytes of its entry in the change log.
        """
        self.version += 1
        if batch.snapshot:
            self.is_filled = True
            self._entries = {entry.key: entry for entry in batch.puts}
            self._changes.clear()
            self._kept = KeptChanges()
            self._kept.load([(self.version, 0)])
            return
        for entry in batch.puts:
            self._entries[entry.key] = entry
        for key in batch.deletes:
            self._entries.pop(key, None)
        pruned = self._kept.pruned
        self._kept.append(self.version, size)
        for version in range(pruned + 1, self._kept.pruned + 1):
            self._changes.pop(version, None)
        self._changes[self.version] = batch

    def entries(self) -> Sequence[MetadataEntry]:
        """Return all entries, sorted by key."""
        return [entry for _, entry in sorted(self._entries.items())]

    def change(self, version: int) -> MetadataBatch | None:
        """Return a change; None if it is a snapshot, or no longer kept."""
        return self._changes.get(version)
