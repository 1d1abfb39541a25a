"""An event loop in a thread of its own, for the blocking producer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from headrace.errors import ClosedError
from headrace.forking import FORKED

_JOIN_S: Final = 5.0
"""The longest time in seconds that `close` waits for the end of the thread."""

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, which runs coroutines for callers that block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.closed = False
        self._forked = False

    def disown(self) -> None:
        """Close, in a forked child: the loop and its thread belong to the parent."""
        self.closed = self._forked = True
        self._lock = threading.Lock()
        self._thread = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. If the wait is interrupted, the coroutine is cancelled.

        Raises:
            ClosedError: The thread has ended.
        """
        with self._lock:
            if self.closed:
                work.close()
                raise ClosedError(
                    f"this producer {FORKED}" if self._forked else "the producer is closed"
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="headrace-kinesis", daemon=True
                )
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread, after all coroutines have ended."""
        with self._lock:
            self.closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_JOIN_S)
            if not thread.is_alive():
                loop.close()
