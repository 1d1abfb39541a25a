"""Tells when something blocks an app's event loop: a handler that sleeps, a hook, a serde, a `dedupe=` that hangs."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any, Final

from headrace.workers.failures import is_ours

LOOK_S: Final = 1.0
BLOCKED_S: Final = 5.0
"""The time in seconds after which a blocked event loop is logged: again after twice the time, and so on."""
FRAMES: Final = 20

_log: Final = logging.getLogger("headrace.workers")


class LoopWatch:
    """A daemon thread that asks the event loop for a sign of life, once a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare to watch the running loop, on whose thread this is called."""
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._ended = threading.Event()
        self._alive = threading.Event()

    def start(self) -> None:
        """Start the watching thread."""
        threading.Thread(target=self._watch, name="headrace-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """End the watching thread."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._alive.clear()
            try:
                self._loop.call_soon_threadsafe(self._alive.set)
            except RuntimeError:
                return  # the loop is closed
            self._await_sign()

    def _await_sign(self) -> None:
        asked, wait_s = time.monotonic(), BLOCKED_S
        frames = sys._current_frames  # noqa: SLF001 - the way to look at another thread
        while not self._alive.wait(wait_s) and not self._ended.is_set():
            _log.warning(
                "the app's event loop has been blocked for %d s, so nothing else runs and the group may take the "
                "partitions away: use await, or a plain function as the handler. It is at\n%s",
                time.monotonic() - asked,
                _stack_of(frames().get(self._loop_thread)),
            )
            wait_s *= 2


def where_is(coroutine: Any) -> str:
    """Return where a coroutine waits, " at billing.py:12": the innermost line of the program's own; else nothing."""
    found = ""
    for _ in range(FRAMES):
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            break
        if not is_ours(frame.f_code.co_filename):
            found = f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        coroutine = coroutine.cr_await
    return found


def _stack_of(frame: FrameType | None) -> str:
    """Return a thread's stack from the first line of the program's own inside the loop on."""
    entries = traceback.extract_stack(frame, FRAMES)
    ours = [index for index, entry in enumerate(entries) if is_ours(entry.filename)]
    return "".join(traceback.format_list(entries[ours[-1] + 1 :] or entries if ours else entries))
