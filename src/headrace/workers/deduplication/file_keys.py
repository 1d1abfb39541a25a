"""Keys in an SQLite file. One SQLite transaction writes the keys of all handlers that wait."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from headrace.errors import StorageError
from headrace.forking import FORKED, disown_in_children, keep_for_ever
from headrace.storage.sqlite import Format, locked_text, open_database, transaction
from headrace.types import TopicPartition
from headrace.workers.deduplication.declared import SeenFile
from headrace.workers.deduplication.keys import key_text
from headrace.workers.deduplication.persistence import Persistence
from headrace.workers.handler.threads import HandlerThreads
from headrace.workers.output.outbox import HandledKey, Publisher

T = TypeVar("T")

APPLICATION_ID: Final = 0x48525345
"""The application id of the SQLite file: the bytes of "HRSE"."""
SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE seen (
    worker TEXT NOT NULL, key BLOB NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (worker, key)
) WITHOUT ROWID;
CREATE INDEX seen_by_time ON seen (worker, at_ms);
"""
_FORMAT: Final = Format("file for seen=", APPLICATION_ID, SCHEMA_VERSION, _SCHEMA)
BUSY_TIMEOUT_S: Final = 5.0
"""The longest wait for a lock on the file, in seconds."""
PRUNE_EVERY: Final = 1_000
"""The number of written keys after which old keys are deleted."""
PRUNE_MAX: Final = 5_000
"""The most keys that one transaction deletes, because other processes wait for the file during it."""
QUESTIONS_MAX: Final = 500
"""The most keys in one query: SQLite limits the number of parameters."""


class FileKeys:
    """The `KeyStore` of `SeenFile`."""

    def __init__(
        self, declared: SeenFile, now_ms: Callable[[], int], *, group: str, worker: str
    ) -> None:
        """Prepare the store. `prepare` opens the file.

        Args:
            declared: The declaration of the program.
            now_ms: Returns the time in milliseconds since 1970.
            group: The worker's group.
            worker: The worker's name.
        """
        self._declared = declared
        self._path = declared.file
        self._now_ms = now_ms
        self._scope = msgspec.json.encode([group, worker]).decode()
        self._persistence = Persistence(worker, f"the file {self._path}", now_ms)
        self._threads = HandlerThreads(1, f"headrace-{worker}-seen")
        self._connection: sqlite3.Connection | None = None
        self._waiting: list[tuple[Sequence[HandledKey], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._unpruned = PRUNE_EVERY
        """The number of keys written since old keys were deleted. It starts high: the file may have many old keys."""
        self._forked = False
        disown_in_children(self)

    def disown(self) -> None:
        """Become closed in a forked child, without touching the connection of the parent: see `keep_for_ever`."""
        self._forked = True
        if self._connection is not None:
            keep_for_ever(self._connection)
            self._connection = None

    async def prepare(self) -> None:
        """Open the file, or create it."""
        await self._threads.run(self._open)

    async def known(
        self,
        partition: TopicPartition,  # noqa: ARG002 - the file has the keys of all partitions
        keys: Collection[Hashable],
    ) -> Collection[Hashable]:
        """Return the keys that are in the file and not expired."""
        texts = {key: key_text(key) for key in keys}
        found: set[bytes] = await self._persistence.until_done(
            partial(self._use, partial(self._select, list(texts.values()))),
            handled=False,
            what="earlier keys cannot be read from",
        )
        return {key for key, text in texts.items() if text in found}

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Write keys, and wait until they are stored. Failed writes are repeated like those of dead letters."""
        await self._persistence.until_done(
            partial(self._written, marks), handled=True, what="its key cannot be written to"
        )

    async def write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        """Do nothing: a transaction of the broker does not reach a file."""

    def note(self, marks: Sequence[HandledKey]) -> bool:
        """Return false if there are keys: `keep` writes them when the transaction is committed."""
        return not marks

    async def restore(self, topic: str) -> None:
        """Do nothing: there is no topic."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: the file has the keys of all members."""

    async def close(self) -> None:
        """Close the SQLite file."""
        if not self._forked:
            await self._threads.run(self._close)
        self._threads.close()

    # On the event loop

    async def _written(self, marks: Sequence[HandledKey]) -> None:
        """Write keys together with those of other records, and wait until they are stored."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((marks, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            keys = [mark.key for marks, _ in waiting for mark in marks if mark.key is not None]
            error: StorageError | None = None
            try:
                await self._use(partial(self._insert, [key_text(key) for key in keys]))
            except StorageError as raised:
                error = raised
            for _, done in waiting:
                if done.cancelled():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
        self._writer = None

    async def _use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def use() -> T:
            if self._connection is None:
                raise StorageError(f"{self._path}: {FORKED if self._forked else 'it is not open'}")
            try:
                return work(self._connection)
            except sqlite3.Error as error:
                raise StorageError(locked_text(self._path, error, BUSY_TIMEOUT_S)) from error

        result: T = await self._threads.run(use)
        return result

    # In the thread

    def _open(self) -> None:
        if self._connection is not None:
            return
        try:
            self._connection = open_database(self._path, _FORMAT, BUSY_TIMEOUT_S)
        except sqlite3.Error as error:
            raise StorageError(locked_text(self._path, error, BUSY_TIMEOUT_S)) from error
        if not self._declared.sync:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    @property
    def _oldest_ms(self) -> int:
        return self._now_ms() - round(self._declared.retention_s * 1000)

    def _select(self, texts: Sequence[bytes], connection: sqlite3.Connection) -> set[bytes]:
        found: set[bytes] = set()
        for at in range(0, len(texts), QUESTIONS_MAX):
            part = texts[at : at + QUESTIONS_MAX]
            query = (
                "SELECT key FROM seen WHERE worker = ? AND at_ms >= ? AND key IN "  # noqa: S608 - question marks
                f"({', '.join('?' * len(part))})"
            )
            found.update(
                row[0] for row in connection.execute(query, (self._scope, self._oldest_ms, *part))
            )
        return found

    def _insert(self, texts: Sequence[bytes], connection: sqlite3.Connection) -> None:
        now_ms = self._now_ms()
        with transaction(connection):
            connection.executemany(
                "REPLACE INTO seen VALUES (?, ?, ?)",
                [(self._scope, text, now_ms) for text in texts],
            )
        self._unpruned += len(texts)
        if self._unpruned >= PRUNE_EVERY:
            self._prune(connection)

    def _prune(self, connection: sqlite3.Connection) -> None:
        """Delete expired and surplus keys, up to `PRUNE_MAX` of them. If more are left, the next write continues."""
        count = _number(connection, "SELECT count(*) FROM seen WHERE worker = ?", self._scope)
        surplus = max(0, count - self._declared.max_keys)
        query = "SELECT count(*) FROM seen WHERE worker = ? AND at_ms < ?"
        wanted = max(surplus, _number(connection, query, self._scope, self._oldest_ms))
        if wanted:
            delete = (
                "DELETE FROM seen WHERE worker = ? AND key IN "
                "(SELECT key FROM seen WHERE worker = ? ORDER BY at_ms LIMIT ?)"
            )
            with transaction(connection):
                connection.execute(delete, (self._scope, self._scope, min(wanted, PRUNE_MAX)))
        self._unpruned = PRUNE_EVERY - 1 if wanted > PRUNE_MAX else 0


def _number(connection: sqlite3.Connection, query: str, *values: Any) -> int:
    return int(connection.execute(query, values).fetchone()[0])
