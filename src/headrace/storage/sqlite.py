"""SQLite files that any number of processes on one machine use at the same time."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headrace.errors import ConfigError
from headrace.storage.permissions import PRIVATE, make_private_directory

WRITE_AHEAD_AGAIN_S: Final = 0.01


class Format(NamedTuple):
    """The properties by which a file is recognised as one of this program."""

    what: str
    """The kind of file for error messages, such as "store of leases"."""
    application_id: int
    """The application id in the file's header. It distinguishes the file from other SQLite databases."""
    version: int
    schema: str
    """The statements that create the tables."""


def open_database(path: Path, form: Format, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a file. The file, and the directories above it, are created if they are missing.

    Every commit is synced: what was written survives a power cut.

    Args:
        path: The file, on a disk of this machine, where locks work.
        form: The properties that the file has to have.
        busy_timeout_s: How long each statement waits for another process's lock, in seconds.

    Raises:
        ConfigError: The file is something else, was written by a later version, or cannot be opened.
        sqlite3.OperationalError: Another process keeps the file locked.
    """
    try:
        make_private_directory(path.parent)
        path.touch(PRIVATE.file)  # SQLite's own files beside it get the same mode
        connection = sqlite3.connect(
            path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path} cannot be opened as a {form.what}: {error}") from error
    try:
        _prepare(connection, path, form)
        connection.execute("PRAGMA synchronous = FULL")
        _write_ahead(connection, time.monotonic() + busy_timeout_s)
    except sqlite3.Error as error:
        connection.close()
        if is_locked(error):
            raise
        raise ConfigError(f"{path} is no {form.what}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def locked_text(path: Path, error: sqlite3.Error, busy_timeout_s: float) -> str:
    """Return the message for a failure, with what to do if other processes keep the file locked."""
    if not is_locked(error):
        return f"{path}: {error}"
    return (
        f"{path}: {error} for more than {busy_timeout_s:g} s: see which program has it open for long, and keep it on a "
        "disk of this machine, not on a network file system"
    )


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another process has the lock that a statement needs."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the file's write lock for a block. Commits at its end, and rolls back after an exception."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After some errors SQLite has already rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _prepare(connection: sqlite3.Connection, path: Path, form: Format) -> None:
    with transaction(connection):
        version = _number(connection, "PRAGMA user_version")
        ours = _number(connection, "PRAGMA application_id") == form.application_id
        if not ours and (version or _number(connection, "SELECT count(*) FROM sqlite_master")):
            raise ConfigError(
                f"{path} is another program's database: name another file for the {form.what}"
            )
        if ours and version > form.version:
            raise ConfigError(
                f"{path} was written in format {version}, this version knows up to {form.version}: "
                "upgrade headrace here"
            )
        if not ours:
            for statement in filter(str.strip, form.schema.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {form.application_id}")
            connection.execute(f"PRAGMA user_version = {form.version}")


def _write_ahead(connection: sqlite3.Connection, deadline_s: float) -> None:
    """Change to a write-ahead log. SQLite does not wait by itself while other processes open the same new file."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(WRITE_AHEAD_AGAIN_S)
        else:
            return


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
