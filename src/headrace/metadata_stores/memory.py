"""A metadata store in memory: for tests and for `headrace dev`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.metadata_stores.limits import check_commit, holds
from headrace.metadata_stores.watches import Callback, Watches
from headrace.ports import Check, Conflict, Delete, MetadataEntry, Put


class MemoryMetadataStore:
    """A dictionary with the semantics of `headrace.ports.MetadataStore`. Nothing is durable.

    `close` ends the session and keeps the content, so that a test can open another broker with the same store.
    """

    __slots__ = ("_entries", "_ephemeral", "_version", "_watches")

    def __init__(self) -> None:
        self._entries: dict[str, MetadataEntry] = {}
        self._ephemeral: set[str] = set()
        self._version = 0
        self._watches = Watches(self.get, self.list)

    def get(self, key: str) -> MetadataEntry | None:
        """Return one entry, or None."""
        return self._entries.get(key)

    def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """Return all entries whose key starts with `prefix`, sorted by key."""
        return [e for key, e in sorted(self._entries.items()) if key.startswith(prefix)]

    def commit(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> dict[str, int]:
        """Apply all operations if all checks are true; otherwise raise Conflict and change nothing."""
        check_commit(checks, operations)
        for index, check in enumerate(checks):
            entry = self._entries.get(check.key)
            if not holds(check, entry.version if entry is not None else None):
                raise Conflict(index)
        self._version += 1
        versions: dict[str, int] = {}
        for operation in operations:
            key = operation.key
            if isinstance(operation, Put):
                self._entries[key] = MetadataEntry(key, bytes(operation.value), self._version)
                versions[key] = self._version
                (self._ephemeral.add if operation.ephemeral else self._ephemeral.discard)(key)
            else:
                self._entries.pop(key, None)
                self._ephemeral.discard(key)
                versions.pop(key, None)
        self._watches.committed(operation.key for operation in operations)
        return versions

    @property
    def session(self) -> int:
        """Always 1: the session cannot be lost."""
        return 1

    def renew(self) -> None:
        """Do nothing: the session cannot be lost."""

    def barrier(self) -> None:
        """Do nothing: reads see every commit."""

    def watch(self, prefix: str, callback: Callback) -> Callable[[], object]:
        """Call `callback` with a snapshot of the entries below a prefix, and then with every change."""
        return self._watches.add(prefix, callback)

    def close(self) -> None:
        """End the session and all watches, and delete the ephemeral entries. The other entries stay."""
        self._watches.clear()
        for key in self._ephemeral:
            del self._entries[key]
        self._ephemeral.clear()
