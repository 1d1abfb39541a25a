"""Group commit: one sync at a time, in a thread. The next sync includes everything that is appended meanwhile.

The sync in flight is the batching window, so there is no timer. Under light load a request waits for one sync. Under
heavy load many requests share one. The broker returns what to sync (`start_sync`) and gets the result (`finish_sync`),
both on the event loop. Only the tasks of the batch run in threads.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, Protocol

_PARALLEL_FROM: Final = 5
"""The number of files on one disk from which on they are synced in parallel. With fewer files, threads take more
time."""
_PARALLEL: Final = 8


class Task(Protocol):
    """One file to sync."""

    def run(self) -> None:
        """Sync the file. An OSError means that it failed."""


class Batch(Protocol):
    """A set of files to sync."""

    @property
    def tasks(self) -> Sequence[Task]:
        """The files one by one. Several threads may run them in any order."""

    @property
    def disks(self) -> int:
        """The number of disks with these files. Disks can sync at the same time."""


def run_in_parallel(tasks: Sequence[Task]) -> None:
    """Run the syncs of a recovery, of which there can be thousands. All have ended on return.

    Raises:
        OSError: A sync failed.
    """
    if not tasks:
        return
    with ThreadPoolExecutor(_PARALLEL, "headrace-recovery") as pool:
        # The disk flushes its cache once for all concurrent syncs, and the flush is nearly all of the time.
        for _ in pool.map(lambda task: task.run(), tasks):
            pass


class Syncable(Protocol):
    """The interface of the broker that the syncer uses. `B` is the type of its batches."""

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something."""

    def start_sync(self) -> Batch | None:
        """Return what to sync, or None."""

    def finish_sync(self, batch: Batch, error: OSError | None, now_ms: int) -> None:
        """Complete a sync and the requests that waited for it."""


class Syncer:
    """Runs the syncs of one broker.

    Args:
        loop: The running event loop.
        broker: The broker.
        now_ms: Returns the time.
        after: Called on the event loop after each successful sync: responses may be ready.
        on_failure: Called on the event loop after a failed sync. No further sync is started then: after a failed fsync
            the kernel may drop the dirty pages and report success for the next one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Syncable,
        now_ms: Callable[[], int],
        *,
        after: Callable[[], object],
        on_failure: Callable[[BaseException], object],
    ) -> None:
        self._loop = loop
        self._broker = broker
        self._now_ms = now_ms
        self._after = after
        self._on_failure = on_failure
        self._jobs: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._scheduled = False
        self._idle_waiters: list[asyncio.Future[None]] = []
        self.in_flight = False
        self.failed = False

    def kick(self) -> None:
        """Make sure that a sync of everything appended starts soon.

        The sync starts at the end of the current iteration of the event loop, so that requests of other connections
        that arrived
        at the same time share it.
        """
        if not (self.in_flight or self._scheduled or self.failed) and self._broker.sync_due:
            self._scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self.in_flight or self.failed:
            return
        try:
            batch = self._broker.start_sync()
        except Exception as error:  # noqa: BLE001 - a broker that cannot commit must not continue
            self._fail(error)
            return
        if batch is None:
            self._wake_idle_waiters()
            return
        self.in_flight = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headrace-sync", daemon=True)
            self._thread.start()
        self._jobs.put(batch)

    def _work(self) -> None:
        """Run batches in the thread, until `close`."""
        while (batch := self._jobs.get()) is not None:
            failure: BaseException | None = None
            try:
                self._run(batch)
            except BaseException as error:  # noqa: BLE001 - the broker has to learn of any error
                failure = error
            try:
                self._loop.call_soon_threadsafe(self._finish, batch, failure)
            except RuntimeError:  # the event loop is closed, and nothing waits for the result
                return

    def _run(self, batch: Batch) -> None:
        """Run the tasks. None of them is running after a return or an exception."""
        tasks = batch.tasks
        if len(tasks) < _PARALLEL_FROM and batch.disks == 1:
            for task in tasks:
                task.run()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_PARALLEL, "headrace-sync")
        futures = [self._pool.submit(task.run) for task in tasks]
        wait(futures)
        for future in futures:
            future.result()

    def _finish(self, batch: Batch, failure: BaseException | None) -> None:
        self.in_flight = False
        self.failed = failure is not None
        error = (
            failure if failure is None or isinstance(failure, OSError) else OSError(repr(failure))
        )
        try:
            self._broker.finish_sync(batch, error, self._now_ms())
        except Exception as bug:  # noqa: BLE001 - the broker has to learn of any error
            failure = failure or bug
        if failure is None:
            self._start()  # the next sync runs while the responses of this one are written
        self._after()
        if failure is not None:
            self._fail(failure)

    def _fail(self, error: BaseException) -> None:
        self.failed = True
        self._on_failure(error)
        self._wake_idle_waiters()

    def _wake_idle_waiters(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def idle(self) -> None:
        """Wait until everything appended is synced, or a sync has failed."""
        if self.failed:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(waiter)
        if not self.in_flight:
            self._start()
        await waiter

    def close(self) -> None:
        """End the thread after the sync in flight."""
        if self._thread is not None:
            self._jobs.put(None)
        if self._pool is not None:
            self._pool.shutdown(wait=False)
