"""Parts that several drivers use: the context of `enter`, callbacks of the program, jitter, and log messages."""

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

INSIDE: Final = (
    "this callback runs inside the client, so it cannot call a method that waits for the client; call the method after "
    "the callback has returned, or from another thread"
)

SAME_REPORT_S: Final = 5.0
"""Seconds in which the same report about a broker is logged once, although several clients make it."""
_NUMBERS: Final = re.compile(r"\d+\.\d s")
SLEW_EVERY_MS: Final = 1000
"""Milliseconds between two corrections of a driver's clock towards wall time."""
_log = logging.getLogger("headrace.clients")


def report(error: BaseException) -> None:
    """Log an exception of a callback, because no caller can catch it."""
    _log.error("a callback of a client failed", exc_info=error)


def warner(client_id: str) -> Callable[[str], object]:
    """Return a function that logs a warning with the client id."""
    return partial(_log.warning, "client %s: %s", client_id)


_reported: dict[str, tuple[str, float]] = {}
"""The last report about each broker, without durations, and the time at which it was logged."""


def report_outage(text: str) -> None:
    """Log that a broker does not answer, or that it answers again. Several clients log the same report once.

    A report is left out only if it equals the last one about the broker, so a second outage soon after the first is
    logged.
    """
    now_s = time.monotonic()
    broker, _, _ = text.partition(": ")
    what = _NUMBERS.sub("", text)
    last, last_s = _reported.get(broker, ("", -math.inf))
    if what != last or now_s >= last_s + SAME_REPORT_S:
        _reported[broker] = what, now_s
        _log.warning("%s", text)


def jitter() -> float:
    """Return a factor for a backoff, so that clients that fail together do not retry together."""
    return random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries, guards nothing


def renewal_share() -> float:
    """Return the part of a SASL session after which the client authenticates again."""
    return random.uniform(0.85, 0.95)  # noqa: S311 - spreads retries, guards nothing


class EngineContext:
    """The context manager that a driver's `enter` returns."""

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
    """Return whether the current thread holds the condition's lock, so that it is inside the client already."""
    return bool(condition._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public method


class Callbacks:
    """Runs the due callbacks of the program in their order, one at a time, without the client's lock."""

    def __init__(self, engine: Engine) -> None:
        self._due = engine.callbacks
        self._lock = threading.RLock()

    def run(self) -> None:
        """Run the due callbacks. If another thread runs callbacks, wait for that thread, so that none is left."""
        with self._lock:
            self._run()
        if self._due:
            self.run_in_passing()

    def run_in_passing(self) -> None:
        """Run the due callbacks, unless another thread runs callbacks.

        Waiting for the other thread could be a deadlock: (1) This thread of the program takes a lock of the program and
        sends a record. (2) A callback in the other thread waits for the program's lock. (3) This thread would wait for
        the callback.
        """
        while self._due and self._lock.acquire(blocking=False):
            try:
                self._run()
            finally:
                self._lock.release()

    def disown(self) -> None:
        """Remove the due callbacks in a forked child. The parent process runs them."""
        self._due.clear()
        self._lock = threading.RLock()

    def _run(self) -> None:
        if self._due:
            interrupts.call_back(self._due, report)
