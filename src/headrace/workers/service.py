"""An app at work: all its workers on one event loop, started together and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.clients.drivers import Target
from headrace.workers.counters import Counters, Hook
from headrace.workers.loop_watch import LoopWatch
from headrace.workers.outlet import Outlet
from headrace.workers.settings import WorkerSettings
from headrace.workers.status import WorkerStatus
from headrace.workers.worker import Worker

STATUS_TIMEOUT_S: Final = 5.0

_log: Final = logging.getLogger("headrace.workers")


class Service:
    """Runs workers until it is stopped, or until one of them fails."""

    def __init__(
        self,
        target: Target,
        workers: Sequence[WorkerSettings],
        counters: Mapping[str, Counters],
        hooks: Sequence[Hook],
        *,
        client_id: str,
        properties: Mapping[str, Any],
        producer: Mapping[str, Any],
    ) -> None:
        self._producer = producer
        self._target = target
        self._settings = workers
        self._counters = counters
        self._hooks = hooks
        self._client_id = client_id
        self._properties = properties
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_wanted = False
        self._tasks: list[asyncio.Task[None]] = []
        self.workers: list[Worker] = []
        self.outlet: Outlet | None = None
        """Open while the workers run."""

    async def run(
        self, *, create_topics: bool = False, on_ready: Callable[[], object] | None = None
    ) -> None:
        """Run the workers; the first that fails stops the others, which drain, and its error is raised.

        Args:
            create_topics: Whether to create the topics that workers name, if they do not exist.
            on_ready: Called when the workers begin.
        """
        self._loop = asyncio.get_running_loop()
        outlet = Outlet(self._target, self._client_id, self._properties, self._producer)
        watch = LoopWatch(self._loop)
        watch.start()
        try:
            if create_topics:
                topics = [topic for settings in self._settings for topic in settings.topics]
                await outlet.create_topics(dict.fromkeys(topics, 1))
            self.workers = [
                Worker(settings, outlet, self._counters[settings.name], self._hooks)
                for settings in self._settings
            ]
            await self._prepare()
            self.outlet = outlet
            where = self._target if isinstance(self._target, str) else "a broker in this process"
            for settings in self._settings:
                _log.info("%s starts: %s; brokers %s", settings.name, settings.describe(), where)
            tasks = [asyncio.create_task(worker.run()) for worker in self.workers]
            self._tasks = tasks
            if self._stop_wanted:
                self._stop_workers()
            if on_ready is not None:
                on_ready()
            try:
                await self._first_failed(tasks)
            finally:
                # Whatever ends one worker, the others end in order; who cancels twice does not wait for it.
                self._stop_workers()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self.outlet = None
            watch.stop()
            await outlet.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _prepare(self) -> None:
        """Have all workers look for what they read, before any of them begins."""
        try:
            for worker in self.workers:
                await worker.prepare()
        except BaseException:
            for worker in self.workers:
                await worker.give_up()
            raise

    async def _first_failed(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait until a worker has failed, the app is told to end, or no worker is left."""
        pending: set[asyncio.Task[None]] = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if self._stop_wanted or any(task.cancelled() or task.exception() for task in done):
                return
        _log.info("no worker is left: the app ends")

    def stop(self) -> None:
        """Have `run` end; any thread may call it."""
        self._stop_wanted = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_workers)

    def status(self) -> dict[str, WorkerStatus]:
        """Return how each worker is getting on, by its name; any thread may call it.

        Raises:
            TimeoutError: The event loop is busy with something else: a handler that blocks it, say.
        """
        loop = self._loop
        if loop is None or not loop.is_running() or loop is _running_loop():
            return self._statuses()

        async def ask() -> dict[str, WorkerStatus]:
            return self._statuses()

        try:
            return asyncio.run_coroutine_threadsafe(ask(), loop).result(STATUS_TIMEOUT_S)
        except TimeoutError:
            raise TimeoutError(
                f"the app's event loop has not answered for {STATUS_TIMEOUT_S:g} s: does a handler block it?"
            ) from None

    def _statuses(self) -> dict[str, WorkerStatus]:
        return {worker.settings.name: worker.status() for worker in self.workers}

    def abort(self) -> None:
        """Wait for no handler any more; from the event loop."""
        for task in self._tasks:
            task.cancel()

    def _stop_workers(self) -> None:
        for worker in self.workers:
            worker.stop()

    async def idle(self) -> bool:
        """Whether all workers have finished every record that is there now."""
        while True:
            before = [counters.as_dict() for counters in self._counters.values()]
            for worker in self.workers:
                if not await worker.idle():
                    return False
            # What one finished while another was asked may have given that one more to do.
            if before == [counters.as_dict() for counters in self._counters.values()]:
                return True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
