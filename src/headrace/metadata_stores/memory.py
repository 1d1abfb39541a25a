"""Metadata in memory: for tests and for `headrace dev`. Several brokers of one process can share the content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.deferred import Deferred, resolved
from headrace.metadata_stores.change_log import ENTRIES_LIMIT, KeptChanges, size_of
from headrace.metadata_stores.limits import check_commit, last_by_key
from headrace.metadata_stores.watches import Callback, Watches
from headrace.ports import (
    Check,
    CommitOutcome,
    Conflict,
    Delete,
    MetadataBatch,
    MetadataEntry,
    MetadataSession,
    Put,
    SessionLost,
    Unavailable,
)

T = TypeVar("T")


class MemoryMetadata:
    """The content of a metadata store, its change log and its sessions. Nothing is durable."""

    __slots__ = ("_changes", "_entries", "_kept", "_owners", "_sessions", "listeners", "version")

    def __init__(self, entries_limit: int = ENTRIES_LIMIT) -> None:
        """Begin without entries.

        Args:
            entries_limit: The greatest number of entries in the change log.
        """
        self._entries: dict[str, MetadataEntry] = {}
        self._owners: dict[str, int] = {}
        """The sessions of the ephemeral keys."""
        self._changes: dict[int, MetadataBatch] = {}
        self._kept = KeptChanges(entries_limit)
        self._sessions: list[bool] = []
        """Whether session *i* + 1 is alive."""
        self.version = 0
        """The version of the last commit; 0 if there was none."""
        self.listeners: dict[object, Callable[[], object]] = {}
        """Functions to call after every commit, by their owners."""

    def begin_session(self) -> int:
        """Begin a session, and return its number."""
        self._sessions.append(True)
        return len(self._sessions)

    def has_session(self, number: int) -> bool:
        """Return whether a session is alive."""
        return self._sessions[number - 1]

    def end_session(self, number: int) -> None:
        """End a session and delete its ephemeral keys. Does nothing if the session has ended."""
        self._sessions[number - 1] = False
        deletes = sorted(key for key, owner in self._owners.items() if owner == number)
        if deletes:
            self._apply([Delete(key) for key in deletes], number)

    def get(self, key: str) -> MetadataEntry | None:
        """Return one entry, or None."""
        return self._entries.get(key)

    def entries(self) -> Sequence[MetadataEntry]:
        """Return all entries, sorted by key."""
        return [entry for _, entry in sorted(self._entries.items())]

    def change(self, version: int) -> MetadataBatch | None:
        """Return the change that the commit with this version has made; None if the log no longer has it."""
        return self._changes.get(version)

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete], session: int
    ) -> dict[str, int] | Conflict | SessionLost:
        """Apply all operations if all checks are true, and call the listeners."""
        if not self.has_session(session):
            return SessionLost("the session has ended")
        for index, check in enumerate(checks):
            entry = self._entries.get(check.key)
            if not check.holds(entry.version if entry is not None else None):
                return Conflict(index)
        return self._apply(operations, session)

    def _apply(self, operations: Sequence[Put | Delete], session: int) -> dict[str, int]:
        self.version += 1
        puts: list[MetadataEntry] = []
        deletes: list[str] = []
        for key, operation in last_by_key(operations):
            self._owners.pop(key, None)
            before = self._entries.pop(key, None)
            if isinstance(operation, Delete):
                if before is not None:
                    deletes.append(key)
                continue
            self._entries[key] = entry = MetadataEntry(key, bytes(operation.value), self.version)
            puts.append(entry)
            if operation.ephemeral:
                self._owners[key] = session
        self._log(MetadataBatch(snapshot=False, puts=puts, deletes=deletes))
        for listener in list(self.listeners.values()):
            listener()
        return {entry.key: entry.version for entry in puts}

    def _log(self, change: MetadataBatch) -> None:
        pruned = self._kept.pruned
        self._kept.append(self.version, size_of(change))
        for version in range(pruned + 1, self._kept.pruned + 1):
            del self._changes[version]
        self._changes[self.version] = change


class MemoryMetadataStore:
    """A session on metadata in memory, with the semantics of `headrace.ports.MetadataStore`. It never fails.

    `close` ends the session and begins another, so that a test can open another broker with the same store.
    """

    def __init__(self, content: MemoryMetadata | None = None) -> None:
        """Begin a session.

        Args:
            content: The metadata, which other sessions may share. None for a content of its own.
        """
        self._content = content if content is not None else MemoryMetadata()
        self._number = self._content.begin_session()
        self._watches = Watches(self._content)

    @property
    def session(self) -> MetadataSession:
        """The current session, which lasts until the store is closed."""
        return MetadataSession(self._number)

    def renew(self) -> Deferred[Unavailable | None]:
        """Do nothing: the session cannot be lost."""
        return resolved(None)

    def wait(self, deferred: Deferred[T]) -> T:
        """Return the value, which every deferred of this store has already."""
        return deferred.value

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Deferred[CommitOutcome]:
        """Apply all operations if all checks are true; otherwise return Conflict and change nothing."""
        check_commit(checks, operations)
        return resolved(self._content.commit(checks, operations, self._number))

    def watch(self, callback: Callback) -> Callable[[], object]:
        """Call `callback` with a snapshot of all entries, and then with every change."""
        self._content.listeners[self] = self._watches.deliver
        end = self._watches.add(callback)
        self._watches.deliver()
        return end

    def close(self) -> None:
        """End the session and all watches, and delete the ephemeral entries. The other entries stay."""
        self._watches.clear()
        self._content.listeners.pop(self, None)
        self._content.end_session(self._number)
        self._number = self._content.begin_session()
