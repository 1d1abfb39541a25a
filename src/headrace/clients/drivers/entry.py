"""Parts that all drivers use: the context of `enter`, the program's callbacks, jitter, and logs of errors."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final

from headrace.clients.drivers.interrupts import interrupts
from headrace.clients.engine import Engine

INSIDE: Final = "a callback that runs inside the client cannot wait for it; call from another place"

TOLD_TOGETHER_S: Final = 5.0
_NUMBERS: Final = re.compile(r"\d+\.\d s")
_log = logging.getLogger("headrace.clients")


def report(error: BaseException) -> None:
    """Log an exception of a callback, which no caller can get."""
    _log.error("a callback of a client failed", exc_info=error)


def warner(client_id: str) -> Callable[[str], object]:
    """Return a function that logs a warning with the name of a client."""
    return partial(_log.warning, "client %s: %s", client_id)


_told: dict[str, tuple[str, float]] = {}
"""The last line that was logged about each broker, without its numbers, and its time."""


def report_reach(text: str) -> None:
    """Log that a broker does not answer, or answers again: once for all clients of the process.

    Only the last line about a broker is not repeated, so that a second outage soon after the first is logged.
    """
    now_s = time.monotonic()
    broker, _, _ = text.partition(": ")
    what = _NUMBERS.sub("", text)
    last, last_s = _told.get(broker, ("", -math.inf))
    if what != last or now_s >= last_s + TOLD_TOGETHER_S:
        _told[broker] = what, now_s
        _log.warning("%s", text)


def jitter() -> float:
    """Return a factor for a backoff, so that clients that fail together do not retry together."""
    return random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries, guards nothing


def renewal_share() -> float:
    """Return the part of a session after which to log in again."""
    return random.uniform(0.85, 0.95)  # noqa: S311 - spreads retries, guards nothing


class Entry:
    """The context of a driver's `enter`."""

    __slots__ = ("_enter", "_leave")

    def __init__(self, enter: Callable[[], Engine], leave: Callable[[], None]) -> None:
        self._enter = enter
        self._leave = leave

    def __enter__(self) -> Engine:
        return self._enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()


def owned(condition: threading.Condition) -> bool:
    """Whether the present thread holds the condition's lock, so that it is inside the client already."""
    return bool(condition._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way to ask


class Callbacks:
    """Runs the program's callbacks that are due: in their order, one at a time, the client's lock free."""

    def __init__(self, engine: Engine) -> None:
        self._due = engine.callbacks
        self._lock = threading.RLock()

    def run(self) -> None:
        """Run the callbacks that are due; wait for another thread that runs callbacks, so that none is left."""
        with self._lock:
            self._run()
        if self._due:
            self.run_in_passing()

    def run_in_passing(self) -> None:
        """Run the callbacks that are due, unless another thread does.

        Waiting could be a deadlock: (1) The callback of the other thread waits for a lock of the program. (2) The
        program holds the lock while it sends.
        """
        while self._due and self._lock.acquire(blocking=False):
            try:
                self._run()
            finally:
                self._lock.release()

    def disown(self) -> None:
        """Forget the callbacks that are due, in a forked child: the parent runs them."""
        self._due.clear()
        self._lock = threading.RLock()

    def _run(self) -> None:
        if self._due:
            interrupts.call_back(self._due, report)
