"""The thread of the metadata store on ZooKeeper: an event loop of its own, with one session after the other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from kazoo.exceptions import KazooException

from headrace.errors import HeadraceError, StorageError
from headrace.metadata_stores.zookeeper.committer import Committer
from headrace.metadata_stores.zookeeper.link import Link
from headrace.metadata_stores.zookeeper.opening import open_session
from headrace.metadata_stores.zookeeper.reader import Reader
from headrace.metadata_stores.zookeeper.settings import ZooKeeperSettings
from headrace.metadata_stores.zookeeper.takeover import SessionKey
from headrace.metadata_stores.zookeeper.tree import Tree
from headrace.metadata_stores.zookeeper.upkeep import prune
from headrace.ports import (
    Check,
    CommitOutcome,
    Delete,
    Journal,
    MetadataBatch,
    MetadataSession,
    Put,
    SessionLost,
    Unavailable,
    Unknown,
)

T = TypeVar("T")
Deliver = Callable[[Callable[[], object]], object]
_CLOSE_TIMEOUT_S: Final = 3.0


class Engine:
    """The sessions, in a thread of its own. Other threads call `submit` and read `failure` and `session`."""

    def __init__(
        self,
        settings: ZooKeeperSettings,
        clock: Callable[[], int],
        journal: Journal,
        deliver: Deliver,
        changed: Callable[[MetadataBatch, int], object],
    ) -> None:
        """Start the thread, which has no session yet.

        Args:
            settings: How to reach ZooKeeper.
            clock: Returns the time in milliseconds, in any thread.
            journal: Receives log events, in the thread of the store's owner.
            deliver: Calls a function in the thread of the store's owner.
            changed: Receives each change with its size, in the thread of the store's owner.
        """
        self._settings = settings
        self._clock = clock
        self._deliver = deliver
        self._link: Link | None = None
        self._number = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reading: asyncio.Task[None] | None = None
        tree, self._journal = Tree(), _Journal(journal, deliver)
        self._reader = Reader(
            tree, self._journal, lambda batch, size: deliver(lambda: changed(batch, size))
        )
        self._committer = Committer(tree, self._reader, clock)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-zookeeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    # For other threads

    def submit(
        self, work: Callable[[], Coroutine[Any, Any, T]], done: Callable[[T], object]
    ) -> None:
        """Run a coroutine in the thread of the engine, and call `done` with its value in the thread of the owner."""

        async def run() -> None:
            value = await work()
            self._deliver(lambda: done(value))

        def start() -> None:
            task = self._loop.create_task(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        with contextlib.suppress(RuntimeError):  # the store is closed, and no outcome is due
            self._loop.call_soon_threadsafe(start)

    @property
    def session(self) -> MetadataSession:
        """The session and its lease."""
        link = self._link
        timeout_ms = (
            self._settings.session_timeout_ms if link is None else link.client.session_timeout_ms
        )
        return MetadataSession(self._number, self._committer.acknowledged_ms, timeout_ms)

    @property
    def key(self) -> SessionKey | None:
        """The id and the password of the present session; None if there is no session."""
        key = None if self._link is None else self._link.client.key
        return key if key is not None and key.number else None

    @property
    def failure(self) -> Unavailable | SessionLost | None:
        """The outcome of every call now; None while the session has a connection."""
        link = self._link
        if link is None:
            return Unavailable("there is no session with ZooKeeper")
        if link.state == "lost":
            return SessionLost("the ZooKeeper session has ended")
        if link.state != "connected":
            return Unavailable("there is no connection with ZooKeeper")
        return None

    def close(self) -> None:
        """End the session and the thread. Returns after a few seconds in any case."""

        async def end() -> None:
            if self._reading is not None:
                self._reading.cancel()
            for task in list(self._tasks):
                task.cancel()
            if self._link is not None:
                thread = self._link.end()
                await asyncio.to_thread(thread.join, _CLOSE_TIMEOUT_S)
            self._loop.stop()

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(end()))
        self._thread.join(_CLOSE_TIMEOUT_S + 1)

    # In the thread of the engine

    async def begin(self) -> HeadraceError | None:
        """Begin a session, unless there is one; return the error if that fails."""
        link = self._link
        if link is not None and link.state != "lost":
            return None if link.state == "connected" else Unavailable("there is no connection")
        sent_ms = self._clock()
        try:
            link = Link(self._settings, self._state_changed)
        except HeadraceError as error:
            return error
        try:
            await open_session(link, self._settings)
        except HeadraceError as error:
            link.lose()
            return error
        except Exception as error:  # noqa: BLE001 - the caller gets an outcome in any case
            link.lose()
            return Unavailable(f"ZooKeeper: {error!r}")
        except BaseException:  # the store is closed meanwhile
            link.lose()
            raise
        if self._reading is not None:
            await asyncio.wait([self._reading])
        self._committer.acknowledged_ms = max(self._committer.acknowledged_ms, sent_ms)
        self._link = link
        self._number += 1
        self._reading = self._loop.create_task(self._reader.run(link))
        return None

    def _state_changed(self) -> None:
        link = self._link
        if link is None:
            return
        if link.state == "suspended":
            self._journal.warning("zookeeper_disconnected", connect=self._settings.connect)
        elif link.state == "connected":
            self._journal.info("zookeeper_connected", connect=self._settings.connect)
        elif link.state == "lost":
            self._journal.error("zookeeper_session_lost", connect=self._settings.connect)
            link.end()
            self._reader.look()

    async def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> CommitOutcome:
        """Make a commit in the present session."""
        failure, link = self.failure, self._link
        if failure is not None or link is None:
            return failure or Unavailable("there is no session with ZooKeeper")
        try:
            return await self._committer.commit(link, checks, operations)
        except Exception as error:  # noqa: BLE001 - the caller gets an outcome in any case
            self._journal.error("work_failed", work="metadata commit", error=repr(error))
            return Unknown(f"the commit has failed: {error!r}")

    async def sync(self) -> StorageError | None:
        """Read everything that was committed before the call."""
        failure, link = self.failure, self._link
        if failure is not None or link is None:
            return failure
        try:
            await link.sync()
            await asyncio.wait_for(
                self._reader.caught_up(), self._settings.connection_timeout_ms / 1000
            )
        except (KazooException, TimeoutError):
            return Unavailable("ZooKeeper does not respond")
        return None

    async def upkeep(self, marks_kept_ms: int) -> StorageError | None:
        """Delete old entries of the change log, and marks that no session needs."""
        failure, link = self.failure, self._link
        if failure is not None or link is None:
            return failure
        error = await prune(link, self._reader.tree, self._reader, marks_kept_ms)
        return None if error is None else Unavailable(f"ZooKeeper: {error}")


class _Journal:
    """Passes log events on to the thread of the owner."""

    def __init__(self, journal: Journal, deliver: Deliver) -> None:
        self._journal = journal
        self._deliver = deliver

    def info(self, event: str, **fields: object) -> None:
        """Log a normal event."""
        self._deliver(lambda: self._journal.info(event, **fields))

    def warning(self, event: str, **fields: object) -> None:
        """Log an abnormal event."""
        self._deliver(lambda: self._journal.warning(event, **fields))

    def error(self, event: str, **fields: object) -> None:
        """Log a failure that an operator has to look at."""
        self._deliver(lambda: self._journal.error(event, **fields))
