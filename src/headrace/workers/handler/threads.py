"""Daemon threads for handlers that are plain functions. A daemon thread that hangs does not keep the process alive."""

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
    """Runs functions in at most `limit` threads, which start when they are needed. One event loop uses an object."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in a thread and return its result. A cancelled call does not stop the function."""
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
        """End each thread after the functions that it runs or that wait."""
        for _ in range(self._threads):
            self._queue.put(_END)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (work := self._queue.get()) is not _END:
            function, future = work
            result: Any = None
            error: Exception | None = None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 - `run` raises it
                # A future takes no StopIteration, and a SystemExit in a thread must not end the event loop.
                if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                    error = raised
                else:
                    error = RuntimeError(f"the handler raised {raised!r}")
            # The event loop is closed, so no task waits for the result.
            with contextlib.suppress(RuntimeError):
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
