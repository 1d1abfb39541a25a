"""Work that takes milliseconds in threads beside the loop, so that nobody else waits for it.

Passwords are checked so, and records decompressed and compressed, in other threads: nobody waits for a login because
batches are large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

_THREADS: Final = 2
"""The work lets go of the interpreter; a flood of it must not take all cores."""


class Aside:
    """The threads; they start with the first work. A connection has one piece of work at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before: Callable[[], object],
        after: Callable[[], object],
        name: str = "headrace-aside",
    ) -> None:
        """Use threads of this name; `before` and `after` enclose everything that happens on the loop."""
        self._loop = loop
        self._before = before
        self._after = after
        self._threads = ThreadPoolExecutor(_THREADS, name)
        self._at_work: list[None] = []
        """An entry for each thread that is at work."""

    @property
    def busy(self) -> bool:
        """Whether a thread is at work; the interpreter would wait for it at its end."""
        return bool(self._at_work)

    def run(self, work: Callable[[], Any], done: Callable[[Any], object]) -> Callable[[], object]:
        """Run `work` in a thread, and then `done` with what it returned on the loop.

        Returns:
            What gives it up: `work` is not begun any more, and `done` is not called.
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
        """End the threads; what has not begun is left."""
        self._threads.shutdown(wait=False, cancel_futures=True)
