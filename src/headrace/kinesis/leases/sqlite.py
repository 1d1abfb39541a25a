"""Leases in an SQLite file: for any number of processes on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.core.lease.checkpoint import Checkpoint, parse_checkpoint
from headrace.core.lease.lease import HashRange, Lease, LeaseKey
from headrace.errors import ConfigError, LeaseStoreError
from headrace.forking import FORKED, disown_in_children, keep_for_ever
from headrace.kinesis.leases import writes
from headrace.storage.sqlite import Format, locked_text, open_database, transaction

T = TypeVar("T")

APPLICATION_ID: Final = 0x48524B4C
"""The application id in the file's header: the characters HRKL."""

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE leases (
    group_name TEXT NOT NULL, stream TEXT NOT NULL, shard TEXT NOT NULL,
    position TEXT NOT NULL, sub_sequence INTEGER, owner TEXT, epoch INTEGER NOT NULL, beat INTEGER NOT NULL,
    parents TEXT NOT NULL, next_owner TEXT, first_hash TEXT, last_hash TEXT,
    bytes_per_s REAL NOT NULL, switches INTEGER NOT NULL,
    PRIMARY KEY (group_name, stream, shard)
) WITHOUT ROWID;
CREATE TABLE recorded (
    scope TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
"""
_FORMAT: Final = Format("lease store", APPLICATION_ID, SCHEMA_VERSION, _SCHEMA)
_COLUMNS: Final = (
    "group_name, stream, shard, position, sub_sequence, owner, epoch, beat, parents, next_owner, "
    "first_hash, last_hash, bytes_per_s, switches"
)
_INSERT: Final = f"INTO leases ({_COLUMNS}) VALUES ({', '.join('?' * 14)})"
_OF_STREAM: Final = "FROM leases WHERE group_name = ? AND stream = ? ORDER BY shard"
_WHERE: Final = "group_name = ? AND stream = ? AND shard = ?"


class SqliteLeaseStore:
    """A `LeaseStore` in an SQLite file.

    Every write is a transaction that holds the file's write lock from its beginning, and is synced: a write that has
    returned survives a power cut. The file must lie on a local file system, where locks work.
    """

    def __init__(self, path: Path, *, create: bool = True, busy_timeout_ms: int = 5_000) -> None:
        self._path = path
        self._create = create
        self._busy_timeout_s = busy_timeout_ms / 1000
        self._connection: sqlite3.Connection | None = None
        # One thread uses the connection, and a slow disk does not block the event loop.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-leases")
        self._forked = False
        disown_in_children(self)

    def disown(self) -> None:
        """Close, in a forked child, and leave the connection unchanged; see `keep_for_ever`."""
        self._forked = True
        if self._connection is not None:
            keep_for_ever(self._connection)
            self._connection = None

    async def open(self) -> None:
        """Open the file. Create it, with its directories, if it is missing.

        Raises:
            ConfigError: The file is missing and is not to be created, has another format, was written by a later
                version, or cannot be opened.
            LeaseStoreError: Another process keeps the file locked.
        """
        await self._run(self._open)

    async def close(self) -> None:
        """Close the file, and end the thread."""
        if self._forked:
            return
        with contextlib.suppress(RuntimeError):  # the store was closed before
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def leases(self, group: str, stream: str) -> list[Lease]:
        """Return all leases of a group on a stream, sorted by shard."""
        query = f"SELECT {_COLUMNS} {_OF_STREAM}"
        return [_lease(row) for row in await self._read(query, group, stream)]

    async def streams(self) -> list[tuple[str, str]]:
        """Return every (group, stream) that has leases, sorted."""
        rows = await self._read("SELECT DISTINCT group_name, stream FROM leases")
        return sorted((group, stream) for group, stream in rows)

    async def create(self, lease: Lease) -> bool:
        """Write a lease unless one with its key exists; return whether it was written."""
        writes.check_key(lease.key)
        return await self._execute(f"INSERT OR IGNORE {_INSERT}", *_row(lease)) > 0

    async def take(self, seen: Lease, owner: str) -> Lease | None:
        """Make a member the owner if epoch and beat are as seen; return the lease, or None."""
        return await self._change(seen.key, lambda row: writes.taken(row, seen, owner))

    async def renew(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        beat: int,
        *,
        checkpoint: Checkpoint | None = None,
        bytes_per_s: float | None = None,
    ) -> Lease | None:
        """Write a higher beat, and a checkpoint if there is one, if (owner, epoch) holds."""
        change = partial(
            writes.renewed,
            owner=owner,
            epoch=epoch,
            beat=beat,
            checkpoint=checkpoint,
            bytes_per_s=bytes_per_s,
        )
        return await self._change(key, change)

    async def ask(self, seen: Lease, asker: str) -> bool:
        """Write the asking member if the epoch is as seen and no other member asks."""
        return await self._change(seen.key, lambda row: writes.asked(row, seen, asker)) is not None

    async def give(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        *,
        to: str | None,
        checkpoint: Checkpoint | None,
    ) -> bool:
        """Release the lease, or transfer it, with the checkpoint, in one write."""
        change = partial(writes.given, owner=owner, epoch=epoch, to=to, checkpoint=checkpoint)
        return await self._change(key, change) is not None

    async def reset(self, seen: Lease, checkpoint: Checkpoint) -> Lease | None:
        """Write an administrator's checkpoint if epoch and beat are as seen."""
        return await self._change(seen.key, lambda row: writes.moved(row, seen, checkpoint))

    async def delete(self, seen: Lease) -> bool:
        """Remove a row if its epoch is as seen; return whether it is removed."""
        delete = f"DELETE FROM leases WHERE {_WHERE} AND epoch = ?"  # noqa: S608 - constants
        await self._execute(delete, *seen.key, seen.epoch)
        return not await self._read(f"SELECT 1 FROM leases WHERE {_WHERE}", *seen.key)  # noqa: S608 - constants

    async def record_once(self, scope: str, name: str, value: str) -> str:
        """Write a value under a name unless it has one; return the value that is stored now."""
        writes.check_name("scope", scope)

        def record(connection: sqlite3.Connection) -> str:
            with transaction(connection):
                connection.execute(
                    "INSERT OR IGNORE INTO recorded VALUES (?, ?, ?)", (scope, name, value)
                )
                query = "SELECT value FROM recorded WHERE scope = ? AND name = ?"
                return str(connection.execute(query, (scope, name)).fetchone()[0])

        return await self._use(record)

    async def recorded(self, scope: str) -> dict[str, str]:
        """Return all values of a scope by name."""
        return dict(await self._read("SELECT name, value FROM recorded WHERE scope = ?", scope))

    async def forget(self, scope: str, names: list[str]) -> None:
        """Remove values. Missing ones are ignored."""

        def remove(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                query = "DELETE FROM recorded WHERE scope = ? AND name = ?"
                connection.executemany(query, [(scope, name) for name in names])

        await self._use(remove)

    async def _read(self, query: str, *values: object) -> list[Any]:
        return await self._use(lambda connection: connection.execute(query, values).fetchall())

    async def _execute(self, statement: str, *values: object) -> int:
        def write(connection: sqlite3.Connection) -> int:
            with transaction(connection):
                return connection.execute(statement, values).rowcount

        return await self._use(write)

    async def _change(self, key: LeaseKey, change: Callable[[Lease], Lease | None]) -> Lease | None:
        def write(connection: sqlite3.Connection) -> Lease | None:
            with transaction(connection):
                query = f"SELECT {_COLUMNS} FROM leases WHERE {_WHERE}"  # noqa: S608 - constants
                row = connection.execute(query, key).fetchone()
                changed = None if row is None else change(_lease(row))
                if changed is not None:
                    connection.execute(f"REPLACE {_INSERT}", _row(changed))
                return changed

        return await self._use(write)

    async def _use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def use() -> T:
            if self._connection is None:
                raise LeaseStoreError(f"{self._path}: the lease store is not open")
            try:
                return work(self._connection)
            except sqlite3.Error as error:
                raise self._unanswered(error) from error

        return await self._run(use)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._forked:
            raise LeaseStoreError(f"{self._path}: this lease store {FORKED}")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError as error:  # the executor was shut down
            raise LeaseStoreError(f"{self._path}: the lease store is closed") from error

    def _unanswered(self, error: sqlite3.Error) -> LeaseStoreError:
        return LeaseStoreError(locked_text(self._path, error, self._busy_timeout_s))

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> None:
        if self._connection is not None:
            return
        if not self._create and not self._path.exists():
            raise ConfigError(f"the lease file {self._path} does not exist")
        try:
            self._connection = open_database(self._path, _FORMAT, self._busy_timeout_s)
        except sqlite3.Error as error:
            raise self._unanswered(error) from error


def _row(lease: Lease) -> tuple[object, ...]:
    first, last = lease.hash_range or (None, None)
    return (
        *lease.key,
        lease.checkpoint.position,
        lease.checkpoint.sub_sequence,
        lease.owner,
        lease.epoch,
        lease.beat,
        " ".join(sorted(lease.parents)),
        lease.next_owner,
        None if first is None else str(first),
        None if last is None else str(last),
        lease.bytes_per_s,
        lease.switches,
    )


def _lease(row: tuple[Any, ...]) -> Lease:
    first, last = row[10:12]
    return Lease(
        key=LeaseKey(*row[:3]),
        checkpoint=parse_checkpoint(*row[3:5]),
        owner=row[5],
        epoch=row[6],
        beat=row[7],
        parents=frozenset(row[8].split()),
        next_owner=row[9],
        hash_range=None if first is None else HashRange(int(first), int(last)),
        bytes_per_s=row[12],
        switches=row[13],
    )
