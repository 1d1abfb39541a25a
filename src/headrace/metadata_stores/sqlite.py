"""The metadata store of a single node: one SQLite file, which every commit syncs.

The file is in WAL mode with `synchronous=FULL`, so a commit that returned survives a power cut. The connection holds
SQLite's exclusive lock until it is closed, so a second broker with the same file refuses to start instead of waiting.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.errors import StorageError
from headrace.forking import FORKED, disown_in_children, keep_for_ever
from headrace.metadata_stores.limits import check_commit, holds
from headrace.metadata_stores.watches import Callback, Watches
from headrace.ports import Check, Conflict, Delete, MetadataEntry, Put, Unavailable, Unknown

APPLICATION_ID: Final = 0x48524D44
"""The application id in the file's header ("HRMD"), by which the store refuses databases of other programs."""

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE counter (version INTEGER NOT NULL);
INSERT INTO counter VALUES (0);
"""
_SESSION: Final = """
CREATE TEMP TABLE ephemerals (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TEMP VIEW present AS
    SELECT key, value, version FROM main.entries UNION ALL SELECT key, value, version FROM temp.ephemerals;
"""
"""The tables of a session. Ephemeral entries are in memory, and are deleted when the connection is closed. The same
transactions change them and the durable entries."""
_AFTER_EVERY_KEY: Final = "\U0010ffff"


class SqliteMetadataStore:
    """Metadata in an SQLite file, with the semantics of `headrace.ports.MetadataStore`.

    Calls come from one thread at a time.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file. It is created if it does not exist; its directory must exist.

        Raises:
            StorageError: Another broker has the file open, it is not a metadata store, or it is damaged.
        """
        self._path = Path(path)
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
        self._watches = Watches(self.get, self.list)
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
        self._connection.execute("PRAGMA temp_store = MEMORY")
        with self._transaction():
            version = self._number("PRAGMA user_version")
            if version == 0 and self._number("SELECT count(*) FROM sqlite_master") == 0:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif self._number("PRAGMA application_id") != APPLICATION_ID:
                raise StorageError(f"{self._path}: not a metadata store of Headrace")
            elif version != SCHEMA_VERSION:
                raise StorageError(
                    f"{self._path}: written in format {version}, this version reads {SCHEMA_VERSION}"
                )
        for statement in filter(str.strip, _SESSION.split(";")):
            self._connection.execute(statement)

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

    def get(self, key: str) -> MetadataEntry | None:
        """Return one entry, or None."""
        try:
            row = self._connection.execute(
                "SELECT key, value, version FROM present WHERE key = ?", (key,)
            ).fetchone()
        except sqlite3.Error as error:
            raise Unavailable(f"{self._path}: {error}") from error
        return MetadataEntry(*row) if row is not None else None

    def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """Return all entries whose key starts with `prefix`, sorted by key."""
        try:
            rows = self._connection.execute(
                "SELECT key, value, version FROM present WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix + _AFTER_EVERY_KEY),
            ).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"{self._path}: {error}") from error
        return [MetadataEntry(*row) for row in rows]

    def commit(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> dict[str, int]:
        """Apply all operations if all checks are true; otherwise raise Conflict and change nothing.

        Raises:
            Conflict: A check is false.
            Unavailable: The file cannot be read or written.
            Unknown: The commit itself failed. Later calls see that it was not applied, and a later commit makes that
                final. But if the process ends before, the next process may find the commit applied.
        """
        check_commit(checks, operations)
        try:
            with self._transaction():
                for index, check in enumerate(checks):
                    entry = self.get(check.key)
                    if not holds(check, entry.version if entry is not None else None):
                        raise Conflict(index)
                versions = self._apply(operations)
        except sqlite3.Error as error:
            raise Unavailable(f"{self._path}: {error}") from error
        self._watches.committed(operation.key for operation in operations)
        return versions

    def _apply(self, operations: Sequence[Put | Delete]) -> dict[str, int]:
        self._connection.execute("UPDATE counter SET version = version + 1")
        version = self._number("SELECT version FROM counter")
        versions: dict[str, int] = {}
        for operation in operations:
            key = operation.key
            self._connection.execute("DELETE FROM main.entries WHERE key = ?", (key,))
            self._connection.execute("DELETE FROM temp.ephemerals WHERE key = ?", (key,))
            if isinstance(operation, Put):
                table = "temp.ephemerals" if operation.ephemeral else "main.entries"
                self._connection.execute(
                    f"INSERT INTO {table} VALUES (?, ?, ?)",  # noqa: S608 - one of the two names above
                    (key, bytes(operation.value), version),
                )
                versions[key] = version
            else:
                versions.pop(key, None)
        return versions

    @property
    def session(self) -> int:
        """Always 1: the session lasts until the file is closed."""
        return 1

    def renew(self) -> None:
        """Do nothing: the session lasts until the file is closed."""

    def barrier(self) -> None:
        """Do nothing: there is no other user of the file."""

    def watch(self, prefix: str, callback: Callback) -> Callable[[], object]:
        """Call `callback` with a snapshot of the entries below a prefix, and then with every change."""
        return self._watches.add(prefix, callback)

    def close(self) -> None:
        """End the session, write the WAL into the file, and release the lock."""
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
