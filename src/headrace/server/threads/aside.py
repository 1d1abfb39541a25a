"""Threads for work that takes milliseconds, so that the event loop does not wait for it.

The server checks passwords in such threads. It compresses and decompresses records in other threads, so that a login
does not wait for large batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

_THREADS: Final = 2
"""The number of threads. The work releases the interpreter lock, so that more threads would take all cores."""


class Aside:
    """Runs work in threads. The threads start with the first work. Each connection has at most one piece of work."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before: Callable[[], object],
        after: Callable[[], object],
        name: str = "headrace-aside",
    ) -> None:
        """Use threads of this name. `before` and `after` enclose everything on the event loop."""
        self._loop = loop
        self._before = before
        self._after = after
        self._threads = ThreadPoolExecutor(_THREADS, name)
        self._at_work: list[None] = []
        """One entry for each thread that is working."""

    @property
    def busy(self) -> bool:
        """Whether a thread is working. The interpreter waits for it when the process ends."""
        return bool(self._at_work)

    def run(self, work: Callable[[], Any], done: Callable[[Any], object]) -> Callable[[], object]:
        """Run `work` in a thread, then call `done` with its result on the event loop.

        Returns:
            A function that cancels the work: `work` is not begun, and `done` is not called.
        """

        def at_work() -> Any:
            self._at_work.append(None)
            try:
                return work()
            finally:
                self._at_work.pop()

        def finish(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                self._before()
                done(future.result())
                self._after()

        future = self._loop.run_in_executor(self._threads, at_work)
        future.add_done_callback(finish)
        return future.cancel

    def close(self) -> None:
        """End the threads, without the work that has not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
