"""Runs all workers of an app on one event loop. They start together and stop together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.clients.drivers import Target
from headrace.errors import HeadraceError, StartError
from headrace.workers.monitoring.counters import Counters, Hook
from headrace.workers.monitoring.loop_watch import LoopWatch
from headrace.workers.monitoring.status import WorkerStatus
from headrace.workers.output.outlet import Outlet
from headrace.workers.running.worker import Worker
from headrace.workers.settings import WorkerSettings

STATUS_TIMEOUT_S: Final = 5.0
"""The longest wait of `status` for the event loop, in seconds."""

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
        self.counters = counters
        self._hooks = hooks
        self._client_id = client_id
        self._properties = properties
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_wanted = False
        self._checking: asyncio.Task[list[HeadraceError]] | None = None
        """The task that checks whether the workers can start; None when it does not run."""
        self._tasks: list[asyncio.Task[None]] = []
        self.workers: list[Worker] = []
        self.outlet: Outlet | None = None
        """Open while the workers run."""

    async def run(
        self, *, create_topics: bool = False, on_ready: Callable[[], object] | None = None
    ) -> None:
        """Run the workers. If a worker fails, the others drain and stop, and the error is raised.

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
            if not await self._prepare(outlet):
                return
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
                # All workers end in order, for any reason. A second cancellation of this task skips the wait.
                self._stop_workers()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self.outlet = None
            watch.stop()
            await outlet.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _prepare(self, outlet: Outlet) -> bool:
        """Run the checks of all workers before one of them begins.

        Returns:
            Whether the workers may begin. False if the app was stopped during the checks.

        Raises:
            HeadraceError: The problem that prevents a start; a `StartError` if there are several.
        """
        self.workers = []
        checking = self._checking = asyncio.create_task(self._problems(outlet))
        may_begin = False
        try:
            await asyncio.wait({checking})
            if not checking.cancelled():
                _raise_for(checking.result())
                may_begin = True
        finally:
            self._checking = None
            if not may_begin:
                checking.cancel()
                await asyncio.wait({checking})
                for worker in self.workers:
                    await worker.give_up()
        return may_begin

    async def _problems(self, outlet: Outlet) -> list[HeadraceError]:
        """Create the workers, and return the problems that prevent their start."""
        problems: list[HeadraceError] = []
        for settings in self._settings:
            try:
                counters = self.counters[settings.name]
                self.workers.append(Worker(settings, outlet, counters, self._hooks))
            except HeadraceError as error:
                problems.append(error)
        problems += await _all_of(worker.prepare() for worker in self.workers)
        return problems or await _all_of(worker.take_over() for worker in self.workers)

    async def _first_failed(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait until a worker has failed, the app is stopped, or all workers have ended."""
        pending: set[asyncio.Task[None]] = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if self._stop_wanted or any(task.cancelled() or task.exception() for task in done):
                return
        _log.info("no worker is left: the app ends")

    def stop(self) -> None:
        """End `run`. Any thread may call this."""
        self._stop_wanted = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_workers)

    def status(self) -> dict[str, WorkerStatus]:
        """Return the status of each worker, by its name. Any thread may call this.

        Raises:
            TimeoutError: The event loop did not answer, for example because a handler blocks it.
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
        """Cancel all workers without a wait for handlers. Call this on the event loop."""
        if self._checking is not None:
            self._checking.cancel()
        for task in self._tasks:
            task.cancel()

    def _stop_workers(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            return
        for worker in self.workers:
            worker.stop()

    async def idle(self) -> bool:
        """Return whether all workers have finished every record that exists now."""
        while True:
            before = [counters.as_dict() for counters in self.counters.values()]
            for worker in self.workers:
                if not await worker.idle():
                    return False
            # A worker may have written input for another worker after that one's check.
            if before == [counters.as_dict() for counters in self.counters.values()]:
                return True


async def _all_of(checks: Iterable[Awaitable[list[HeadraceError]]]) -> list[HeadraceError]:
    """Run checks at the same time, and return the problems that they found."""
    problems: list[HeadraceError] = []
    for found in await asyncio.gather(*checks, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
        problems += found
    return problems


def _raise_for(problems: Sequence[HeadraceError]) -> None:
    """Raise the problems that prevent a start, if there are any. Problems with equal texts are raised once."""
    reasons = list({str(each): each for each in problems}.values())
    if reasons:
        raise reasons[0] if len(reasons) == 1 else StartError(reasons)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
