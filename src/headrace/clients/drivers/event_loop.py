"""The parts that both asyncio drivers share: waking calls, and running code of the program on the event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from headrace.clients.drivers.common import report
from headrace.clients.engine import Engine, Task


class Wakeup:
    """Wakes one call when its task has ended, or when the task needs code of the program to run."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def __call__(self, _: object = None) -> None:
        """Wake the call, if it waits."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait until this object is called."""
        self._future = asyncio.get_running_loop().create_future()
        try:
            await self._future
        finally:
            self._future = None


class LoopCallbacks:
    """Runs the due callbacks of the program in their order. Coroutines become tasks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running = False
        self._tasks: set[asyncio.Future[object]] = set()

    def run(self) -> None:
        """Run the due callbacks, unless this is called by one of them."""
        if self._running:
            return
        self._running = True
        due = self._engine.callbacks
        try:
            while due:
                try:
                    value = due.popleft()()
                    if inspect.isawaitable(value):
                        self._spawn(value)
                except BaseException as error:
                    report(error)
                    if isinstance(error, KeyboardInterrupt):
                        raise  # Ctrl-C in a program that runs its loop without asyncio.run
        finally:
            self._running = False

    def _spawn(self, value: Awaitable[object]) -> None:
        task = asyncio.ensure_future(value)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            report(error)


async def outcome_of(task: Task[Any]) -> object:
    """Run the program's function that a task needs; return its result or its exception."""
    assert task.invocation is not None, (
        "the caller has checked that the task needs a function to run"
    )
    try:
        value = task.invocation.function(*task.invocation.arguments)
        return await value if inspect.isawaitable(value) else value
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised there
        return error


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        RuntimeError: No event loop is running.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        text = "no event loop is running: create clients of headrace.aio inside a coroutine"
        raise RuntimeError(text) from None
