"""Daemon threads for handlers that are plain functions: one that hangs must not keep the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

_END: Final = None

Work = tuple[Callable[[], Any], asyncio.Future[Any]]


class HandlerThreads:
    """Runs functions in threads that are started as they are needed, up to a number; to be used on one event loop."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function and return its result; cancelling stops the waiting, not the function."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._busy += 1
        if self._busy > self._threads and self._threads < self._limit:
            self._threads += 1
            name = f"{self._name}-{self._threads}"
            threading.Thread(target=self._work, args=(loop,), name=name, daemon=True).start()
        context = contextvars.copy_context()
        self._queue.put((lambda: context.run(function), future))
        return await future

    def close(self) -> None:
        """End the threads when they have finished what they do."""
        for _ in range(self._threads):
            self._queue.put(_END)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (work := self._queue.get()) is not _END:
            function, future = work
            result: Any = None
            error: Exception | None = None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 - the waiting task gets it
                # A future takes no StopIteration, and a SystemExit in a thread must not end the event loop.
                if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                    error = raised
                else:
                    error = RuntimeError(f"the handler raised {raised!r}")
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._settle, future, result, error)
            del function, future, result, error

    def _settle(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._busy -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
