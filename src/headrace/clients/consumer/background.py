"""A flow that runs beside the calls of the program, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.clients.engine import UNLIMITED_MS, Engine, Task, TaskCancelled
from headrace.clients.flows.effects import Flow, Wait


class Background:
    """Runs one flow at a time beside the calls of the program, and reports its outcome unless it was stopped."""

    __slots__ = ("_engine", "_task")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._task: Task[Any] | None = None

    @property
    def running(self) -> bool:
        """Whether a flow is running."""
        return self._task is not None and not self._task.done

    def start(
        self,
        flow: Flow[Any],
        on_done: Callable[[Any], object],
        timeout_ms: int = UNLIMITED_MS,
    ) -> None:
        """Start a flow; `on_done` gets what it returned, or the exception it raised."""
        assert not self.running, "one at a time"

        def ended(task: Task[Any]) -> None:
            if not isinstance(task.outcome, TaskCancelled):
                on_done(task.outcome)
                self._engine.notify()

        task = self._engine.spawn(flow, timeout_ms=timeout_ms, on_done=ended)
        # It may have ended already, and its end may have started the next one.
        if not task.done:
            self._task = task

    def finish(
        self, flow: Flow[Any], on_done: Callable[[Any], object], timeout_ms: int
    ) -> Flow[None]:
        """Stop the running flow, run another one, and wait for its end.

        Use it only in operations without a deadline: after the deadline a `Wait` ends at once.
        """
        self.stop()
        self.start(flow, on_done, max(1, timeout_ms))
        yield from self.wait()

    def wait(self) -> Flow[None]:
        """Wait for the end of the running flow, if there is one; see `finish`."""
        while self.running:
            yield Wait()

    def stop(self) -> None:
        """Cancel the running flow, if there is one."""
        if self._task is not None and not self._task.done:
            self._engine.cancel(self._task)
        self._task = None
