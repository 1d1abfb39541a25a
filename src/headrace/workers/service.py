"""An app at work: all its workers on one event loop, started together and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.clients.drivers import Target
from headrace.errors import HeadraceError, StartError
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

    async def _prepare(self, outlet: Outlet) -> bool:
        """Have all workers look for what they need, before any of them begins.

        Returns:
            Whether they may begin: false if the app was stopped meanwhile.

        Raises:
            HeadraceError: What keeps one of them from starting; a `StartError` where there are several reasons.
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
        """Make the workers, and return what keeps them from starting."""
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
        """Wait until a worker has failed, the app is stopped, or no worker is left."""
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
        """Whether all workers have finished every record that is there now."""
        while True:
            before = [counters.as_dict() for counters in self.counters.values()]
            for worker in self.workers:
                if not await worker.idle():
                    return False
            # What one finished while another was asked may have given that one more to do.
            if before == [counters.as_dict() for counters in self.counters.values()]:
                return True


async def _all_of(checks: Iterable[Awaitable[list[HeadraceError]]]) -> list[HeadraceError]:
    """Return what all checks have found."""
    problems: list[HeadraceError] = []
    for found in await asyncio.gather(*checks, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
        problems += found
    return problems


def _raise_for(problems: Sequence[HeadraceError]) -> None:
    """Raise what keeps an app from starting; what several workers say in the same words is one reason."""
    reasons = list({str(each): each for each in problems}.values())
    if reasons:
        raise reasons[0] if len(reasons) == 1 else StartError(reasons)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
