"""The metadata store of a single node: one SQLite file, which every commit syncs.

The file is in WAL mode with `synchronous=FULL`, so a commit that returned survives a power cut. The connection holds
SQLite's exclusive lock until it is closed, so a second broker with the same file refuses to start instead of waiting.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from headrace.deferred import Deferred, resolved
from headrace.errors import StorageError
from headrace.forking import FORKED, disown_in_children, keep_for_ever
from headrace.metadata_stores.change_log import KeptChanges, size_of
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
    Unavailable,
    Unknown,
)

T = TypeVar("T")

APPLICATION_ID: Final = 0x48524D44
"""The application id in the file's header ("HRMD"), by which the store refuses databases of other programs."""

SCHEMA_VERSION: Final = 2
_UPGRADES: Final = (
    """
CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE counter (version INTEGER NOT NULL);
INSERT INTO counter VALUES (0);
""",
    """
ALTER TABLE entries ADD COLUMN ephemeral INTEGER NOT NULL DEFAULT 0;
CREATE TABLE changes (version INTEGER, key TEXT, value BLOB, PRIMARY KEY (version, key)) WITHOUT ROWID;
""",
)
"""The statements that lead from each schema version to the next, from an empty file on.

`counter` has the version of the last commit. The rows of `changes` with one version are an entry of the change log:
what the commit with this version put, and what it deleted, with NULL in place of the value."""


class SqliteMetadataStore:
    """Metadata in an SQLite file, with the semantics of `headrace.ports.MetadataStore`.

    Calls come from one thread at a time.
    """

    def __init__(self, path: str | Path, *, upgrades: bool = True) -> None:
        """Open the file. It is created if it does not exist; its directory must exist.

        Args:
            path: The path of the file.
            upgrades: Whether a file of an earlier schema version is upgraded. If not, nothing is written, and only
                `entries` may be called.

        Raises:
            StorageError: Another broker has the file open, it is not a metadata store, or it is damaged.
        """
        self._path = Path(path)
        self._upgrades = upgrades
        self.is_outdated = False
        """Whether the file has an earlier schema version, and was not upgraded."""
        self.version = 0
        """The version of the last commit; 0 if there was none."""
        self._newest: MetadataBatch | None = None
        """The change of the last commit; None if the file has to be read for it."""
        self._is_current = False
        """Whether `version` and `_kept` agree with the file. They may not after a commit of unknown outcome."""
        self._kept = KeptChanges()
        self._watches = Watches(self)
        try:
            # Only the owner may read the file: from the stored credentials others could find passwords. SQLite creates
            # its own files beside it with the same mode.
            self._path.touch(mode=0o600)
            # The exclusive lock replaces SQLite's thread check: there is one user of the file, in any thread.
            self._connection = sqlite3.connect(
                self._path, timeout=0, isolation_level=None, check_same_thread=False
            )
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"{self._path}: {error}") from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._connection.close()
            raise StorageError(f"{self._path}: {_reason(error)}") from error
        except StorageError:
            self._connection.close()
            raise
        disown_in_children(self)

    def disown(self) -> None:
        """Keep the connection open and unused in a forked child: closing it would write to the parent's file."""
        keep_for_ever(self._connection)
        self._connection = _Disowned(self._path)  # type: ignore[assignment]  # every use of it raises

    def _open(self) -> None:
        # This mode is set before the WAL is used: in this mode SQLite keeps the lock from the first read on.
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            self._upgrade()
        if not self._upgrades:
            return
        self._load()
        self._delete_ephemeral_entries()

    def _load(self) -> None:
        """Read the version of the last commit, and what the change log has."""
        self._newest = None
        self.version = self._number("SELECT version FROM counter")
        sizes = (
            "SELECT version, SUM(LENGTH(key) + COALESCE(LENGTH(value), 0)) FROM changes "
            "GROUP BY version ORDER BY version"
        )
        self._kept.load(self._connection.execute(sizes))
        self._is_current = True

    def _upgrade(self) -> None:
        """Bring the file to the present schema version; create the tables in an empty file."""
        version = self._number("PRAGMA user_version")
        if version or self._number("SELECT count(*) FROM sqlite_master"):
            if self._number("PRAGMA application_id") != APPLICATION_ID:
                raise StorageError(f"{self._path}: not a metadata store of Headrace")
            if not 0 < version <= SCHEMA_VERSION:
                raise StorageError(
                    f"{self._path}: written in format {version}, this version reads up to {SCHEMA_VERSION}: "
                    "use the version of Headrace that wrote the file, or a newer one"
                )
            if version < SCHEMA_VERSION and not self._upgrades:
                self.is_outdated = True
                return
        for statements in _UPGRADES[version:]:
            for statement in filter(str.strip, statements.split(";")):
                self._connection.execute(statement)
        if version < SCHEMA_VERSION:
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _delete_ephemeral_entries(self) -> None:
        """Delete the ephemeral entries of earlier sessions."""
        rows = self._connection.execute("SELECT key FROM entries WHERE ephemeral").fetchall()
        if rows:
            self._apply([], [Delete(key) for (key,) in rows])

    def _number(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            try:
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                # The WAL may have all pages of the commit. If the process ended now, the next process could find them.
                raise Unknown(f"{self._path}: {error}") from error
        except BaseException:
            # After some errors SQLite has already rolled back.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def entries(self) -> Sequence[MetadataEntry]:
        """Return all entries, sorted by key.

        Raises:
            Unavailable: The file cannot be read.
        """
        try:
            rows = self._connection.execute(
                "SELECT key, value, version FROM entries ORDER BY key"
            ).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"{self._path}: {error}") from error
        return [MetadataEntry(*row) for row in rows]

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Deferred[CommitOutcome]:
        """Apply all operations if all checks are true; otherwise return Conflict and change nothing.

        Returns:
            The versions, or an error. Unavailable: the file cannot be read or written. Unknown: the commit itself
            failed. Later calls see that it was not applied, and a later commit makes that final. But if the process
            ends before, the next process may find the commit applied.
        """
        check_commit(checks, operations)
        outcome = self._outcome(checks, operations)
        with contextlib.suppress(Unavailable):  # the next commit notifies the watches again
            self._watches.deliver()
        return resolved(outcome)

    def _outcome(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> CommitOutcome:
        try:
            if not self._is_current:
                self._load()
            return self._apply(checks, operations)
        except Unknown as error:
            self._is_current = False
            with contextlib.suppress(sqlite3.Error):
                self._load()
            return error
        except (Conflict, Unavailable) as error:
            return error
        except sqlite3.Error as error:
            return Unavailable(f"{self._path}: {error}")

    def _apply(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> dict[str, int]:
        """Apply a commit and append it to the change log, in one transaction."""
        version = self.version + 1
        with self._transaction():
            for index, check in enumerate(checks):
                row = self._connection.execute(
                    "SELECT version FROM entries WHERE key = ?", (check.key,)
                ).fetchone()
                if not check.holds(None if row is None else row[0]):
                    raise Conflict(index)
            change = self._write(operations, version)
            self._log(change, version)
        self.version = version
        self._newest = change
        self._kept.append(version, size_of(change))
        return {entry.key: version for entry in change.puts}

    def _write(self, operations: Sequence[Put | Delete], version: int) -> MetadataBatch:
        """Write the entries of a commit, and return its change."""
        puts: list[MetadataEntry] = []
        deletes: list[str] = []
        execute = self._connection.execute
        for key, operation in last_by_key(operations):
            if isinstance(operation, Put):
                value = bytes(operation.value)
                execute(
                    "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
                    (key, value, version, operation.ephemeral),
                )
                puts.append(MetadataEntry(key, value, version))
            elif execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount:
                deletes.append(key)
        execute("UPDATE counter SET version = ?", (version,))
        return MetadataBatch(snapshot=False, puts=puts, deletes=deletes)

    def _log(self, change: MetadataBatch, version: int) -> None:
        """Append a commit to the change log, and prune the oldest entries."""
        rows: list[tuple[int, str, bytes | None]] = [(version, e.key, e.value) for e in change.puts]
        rows += [(version, key, None) for key in change.deletes]
        self._connection.executemany("INSERT INTO changes VALUES (?, ?, ?)", rows)
        pruned = self._kept.pruned_by(size_of(change))
        if pruned != self._kept.pruned:
            self._connection.execute("DELETE FROM changes WHERE version <= ?", (pruned,))

    def change(self, version: int) -> MetadataBatch | None:
        """Return the change that the commit with this version has made; None if the log no longer has it."""
        if version == self.version and self._newest is not None:
            return self._newest
        if version <= self._kept.pruned:
            return None
        try:
            rows = self._connection.execute(
                "SELECT key, value FROM changes WHERE version = ? ORDER BY key", (version,)
            ).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"{self._path}: {error}") from error
        puts = [MetadataEntry(key, value, version) for key, value in rows if value is not None]
        deletes = [key for key, value in rows if value is None]
        return MetadataBatch(snapshot=False, puts=puts, deletes=deletes)

    @property
    def session(self) -> MetadataSession:
        """The session, which lasts until the file is closed."""
        return MetadataSession(1)

    def renew(self) -> Deferred[Unavailable | None]:
        """Do nothing: the session lasts until the file is closed."""
        return resolved(None)

    def wait(self, deferred: Deferred[T]) -> T:
        """Return the value, which every deferred of this store has already."""
        return deferred.value

    def watch(self, callback: Callback) -> Callable[[], object]:
        """Call `callback` with a snapshot of all entries, and then with every change.

        Raises:
            Unavailable: The file cannot be read.
        """
        end = self._watches.add(callback)
        self._watches.deliver()
        return end

    def close(self) -> None:
        """End the session, write the WAL into the file, and release the lock.

        The next start deletes the ephemeral entries.
        """
        self._watches.clear()
        self._connection.close()


class _Disowned:
    """Replaces the parent's connection in a forked child."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def execute(self, *_: object) -> None:
        """Refuse the call, because this is a forked process."""
        raise Unavailable(f"{self._path}: this store {FORKED}")

    def close(self) -> None:
        """Do nothing: the connection is the parent's."""


def _reason(error: sqlite3.Error) -> str:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return "in use by another broker"
    return str(error)
