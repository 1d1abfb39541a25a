"""Runs clients of a broker in this process on an asyncio event loop.

The lock is never held across an `await`. The engine runs only in the thread of the event loop, so that futures and
callbacks of the program stay in this thread. Another thread that has an outcome for the client wakes the loop.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypeVar

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.event_loop import LoopCallbacks, Wakeup, outcome_of, running_loop
from headrace.clients.drivers.local import LocalDriver, settled
from headrace.clients.drivers.local_target import LocalTarget
from headrace.clients.engine import Task
from headrace.clients.flows.effects import ClientState, Flow

T = TypeVar("T")

_TURNS: int = 3
"""The number of iterations of the event loop before the driver advances a manual clock. Other tasks run in them."""


class LocalAioDriver(LocalDriver):
    """Runs the engine of one client of a broker in this process. It is used on one running event loop."""

    def __init__(self, target: LocalTarget, config: ClientConfig, state: ClientState) -> None:
        self._loop = running_loop()
        self._thread_id = threading.get_ident()
        self._wakeups: dict[Wakeup, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._background = False
        super().__init__(target, config, state)
        self._loop_callbacks = LoopCallbacks(self.engine)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the client."""
        return self._loop

    @property
    def runs_here(self) -> bool:
        """Whether the current thread may run the engine: it is the thread of the event loop."""
        return threading.get_ident() == self._thread_id

    def wake(self) -> None:
        """Wake the calls of the client, in the thread of the event loop."""
        if self.runs_here:
            self._wake_calls()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._due)

    async def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result.

        Args:
            flow: The flow.
            timeout_ms: Milliseconds that the flow may take; None is `request.timeout.ms`.

        Raises:
            ApiError: The broker refused a request of the flow.
            TransportError: The broker did not answer in time.
            ClosedError: The client is closed.
        """
        wakeup = Wakeup()
        with self._context as engine:
            task = engine.spawn(
                flow, timeout_ms=self._limit_ms(timeout_ms), on_done=wakeup, on_invoke=wakeup
            )
        self._wakeups[wakeup] = None
        try:
            while not task.done:
                if self._closed:
                    raise self._closed_error()
                if task.invocation is not None:
                    await self._invoke(task)
                else:
                    await self._wait(task, wakeup)
        finally:
            self._wakeups.pop(wakeup, None)
            with self.target.condition:
                self.engine.cancel(task)
        return task.result()

    def start_background(self) -> None:
        """Start to do what is due also while the program is not inside a call."""
        self._background = True
        self._pump()

    async def connect(self) -> None:
        """Check that the client is open. A broker in this process always answers."""
        with self._context:
            pass

    async def close(self) -> None:
        """Detach the client from the broker. Running calls fail."""
        with self.target.condition:
            self._end()
        self._loop_callbacks.run()
        self._wake_calls()
        if self._timer is not None:
            self._timer.cancel()

    def call_back(self) -> None:
        """Run the due callbacks of the program. The caller does not hold the lock."""
        self._loop_callbacks.run()

    def _call_back_in_passing(self) -> None:
        self.call_back()

    def _leave(self) -> None:
        super()._leave()
        if self._background:
            self._arm(self.engine.next_deadline_ms)

    async def _invoke(self, task: Task[Any]) -> None:
        """Run the program's function that a task needs; await its result if it is a coroutine."""
        value = await outcome_of(task)
        with self.target.condition:
            self._refresh()
            self.engine.resume(task, value)

    async def _wait(self, task: Task[Any], wakeup: Wakeup) -> None:
        """Do what is due, then wait until the task changes."""
        until_ms = self._pump()
        if settled(task) or self._closed:
            return
        if not self.target.virtual:
            self._arm(until_ms)
            await wakeup.wait()
            return
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        with self.target.condition:
            until_ms = self.target.pump()
            if not settled(task):
                self.target.wait(until_ms)

    def _pump(self) -> int | None:
        with self.target.condition:
            until_ms = self.target.pump()
        self.call_back()
        if self._background:
            self._arm(until_ms)
        return until_ms

    def _arm(self, due_ms: int | None) -> None:
        """Set the timer for the next event. An earlier timer is not moved."""
        if due_ms is None or self._closed or self.target.virtual:
            return
        if self._timer is None or due_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = due_ms
            wait_ms = max(0, due_ms - self.target.now_ms())
            self._timer = self._loop.call_later(wait_ms / 1000, self._due)

    def _due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        until_ms = self._pump()
        if self._wakeups:
            self._arm(until_ms)

    def _wake_calls(self) -> None:
        for wakeup in self._wakeups:
            wakeup()
