"""A metadata store in memory: for tests and for `headrace dev`."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.coordination.limits import check_commit, holds
from headrace.ports import Check, Conflict, Delete, Entry, Put


class MemoryMetadataStore:
    """A dictionary with the semantics of `headrace.ports.MetadataStore`; nothing is durable.

    Closing keeps the content, so that a test can open a broker again over the same store.
    """

    __slots__ = ("_entries", "_version")

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._version = 0

    def get(self, key: str) -> Entry | None:
        """Return one entry, or None."""
        return self._entries.get(key)

    def list(self, prefix: str) -> Sequence[Entry]:
        """Return all entries whose key starts with `prefix`, sorted by key."""
        return [e for key, e in sorted(self._entries.items()) if key.startswith(prefix)]

    def commit(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> dict[str, int]:
        """Apply all operations if all checks hold, else raise Conflict and change nothing."""
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
                self._entries[key] = Entry(key, bytes(operation.value), self._version)
                versions[key] = self._version
            else:
                self._entries.pop(key, None)
                versions.pop(key, None)
        return versions

    def close(self) -> None:
        """Do nothing; the content stays."""
