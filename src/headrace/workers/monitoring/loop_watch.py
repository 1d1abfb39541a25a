"""Logs when the event loop of an app is blocked, for example by a handler that sleeps, a hook, a serde or `dedupe=`."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any, Final

from headrace.workers.failure.tracebacks import is_ours

LOOK_S: Final = 1.0
"""The interval of the checks in seconds."""
BLOCKED_S: Final = 5.0
"""The time in seconds after which a blocked event loop is logged: again after twice the time, and so on."""
FRAMES: Final = 20
"""The most frames of a stack that are examined or logged."""

_log: Final = logging.getLogger("headrace.workers")


class LoopWatch:
    """A daemon thread that checks once a second whether the event loop runs."""

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
        frames = sys._current_frames  # noqa: SLF001 - the only way to get the stack of another thread
        while not self._alive.wait(wait_s) and not self._ended.is_set():
            _log.warning(
                "the app's event loop has been blocked for %d s: no other handler runs, and the group may assign the "
                "partitions to other members. Use await, or a plain function as the handler. The loop is at\n%s",
                time.monotonic() - asked,
                _stack_of(frames().get(self._loop_thread)),
            )
            wait_s *= 2


def where_is(coroutine: Any) -> str:
    """Return the line of the program at which a coroutine waits: " at billing.py:12". Empty if there is none."""
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
    """Return a thread's stack without the frames of Headrace and of the event loop around the program's code."""
    entries = traceback.extract_stack(frame, FRAMES)
    ours = [index for index, entry in enumerate(entries) if is_ours(entry.filename)]
    return "".join(traceback.format_list(entries[ours[-1] + 1 :] or entries if ours else entries))
