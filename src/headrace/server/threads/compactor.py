"""Compaction in a thread, in steps with pauses between them.

A step is a few milliseconds of Python work on records. While the step runs, it competes with the event loop for the
interpreter. So the compactor pauses after each step for at least as long as the step took. The pause begins when the
event loop has handled the end of the step, so that it is longer while the event loop is busy. The event loop installs
the result of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, Final, Protocol

_REST_RATIO: Final = 1.0
"""The length of a pause, as a multiple of the time of the step before it."""
_SHORTEST_REST_S: Final = 0.001


class Step(Protocol):
    """One step of a compaction."""

    def run(self) -> None:
        """Do this step of the compaction."""


class Compactable(Protocol):
    """The interface of the broker that the compactor uses."""

    @property
    def compaction_due(self) -> bool:
        """Whether `start_compaction` would return something."""

    def start_compaction(self) -> Step | None:
        """Return a step of a compaction, or None."""

    def finish_compaction(self, task: Any, error: Exception | None, now_ms: int) -> None:
        """Complete a step of a compaction."""


class Compactor:
    """Runs the compactions of one broker.

    Args:
        loop: The running event loop.
        broker: The broker whose logs are compacted.
        now_ms: Returns the time.
        after: Called on the event loop after each step: there may be a new deadline, or a failure to report.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Compactable,
        now_ms: Callable[[], int],
        *,
        after: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._broker = broker
        self._now_ms = now_ms
        self._after = after
        self._pool: ThreadPoolExecutor | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._running = False
        self._closed = False

    def kick(self) -> None:
        """Start a step if one is due and none is running."""
        if self._running or self._rest is not None or self._closed:
            return
        if self._broker.compaction_due:
            self._start()

    def _start(self) -> None:
        self._rest = None
        task = self._broker.start_compaction()
        if task is None:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "headrace-compact")
        self._running = True
        self._pool.submit(self._work, task)

    def _work(self, task: Step) -> None:
        """Run one step in the thread."""
        failure: Exception | None = None
        began = perf_counter()
        try:
            task.run()
        except Exception as error:  # noqa: BLE001 - the broker has to learn of any error
            failure = error
        took = perf_counter() - began
        try:
            self._loop.call_soon_threadsafe(self._finish, task, failure, took)
        except RuntimeError:  # the event loop is closed
            return

    def _finish(self, task: Step, failure: Exception | None, took: float) -> None:
        self._running = False
        if self._closed:
            return
        self._broker.finish_compaction(task, failure, self._now_ms())
        if self._broker.compaction_due:
            rest = max(_SHORTEST_REST_S, _REST_RATIO * took)
            self._rest = self._loop.call_later(rest, self._start)
        self._after()

    def close(self) -> None:
        """Start no further steps, and wait for the running step. Its result is dropped."""
        self._closed = True
        if self._rest is not None:
            self._rest.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
