"""The blocking driver for programs that move the bytes themselves: send now, look later, nothing in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from headrace.clients.drivers.blocking import BlockingDriver
from headrace.clients.engine import Outcome
from headrace.clients.flows.effects import Call


class Reply:
    """The outcome of one call, once there is one."""

    __slots__ = ("done", "on_done", "outcome")

    def __init__(self, on_done: Callable[[Reply], Any] | None = None) -> None:
        self.done = False
        self.outcome: Outcome = None
        self.on_done = on_done

    def complete(self, outcome: Outcome) -> None:
        """Set the outcome."""
        self.outcome = outcome
        self.done = True
        if self.on_done is not None:
            self.on_done(self)


class PollingDriver(BlockingDriver):
    """A blocking driver whose bytes move while somebody waits in `run`, `wait` or `poll`."""

    def submit(self, call: Call, *, on_done: Callable[[Reply], Any] | None = None) -> Reply:
        """Send a request without waiting for its response; `on_done` may be told before this returns."""
        reply = Reply(on_done)
        with self.enter() as engine:
            engine.submit(call, reply.complete)
        return reply

    def wait(self, replies: Iterable[Reply]) -> None:
        """Return when all replies are done; each is, when its time is up at the latest."""
        for reply in replies:
            while not reply.done:
                self.poll(1.0)

    def poll(self, timeout: float) -> None:
        """Move bytes: wait up to `timeout` seconds for the first, then return when there are no more at hand."""
        until = time.monotonic() + timeout
        with self.enter() as engine:
            self._calls += 1
            try:
                self._round(engine.now_ms + max(0, round((until - time.monotonic()) * 1000)))
            finally:
                self._calls -= 1
