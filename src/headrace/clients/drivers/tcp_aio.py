"""Runs a client's engine over TCP on an asyncio event loop.

Nothing here blocks or takes a lock: engine, pool and protocols belong to the thread of the event loop. One timer of the
loop does what is due, also while the program is not inside a call. A call waits for a future until its task has ended.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, TypeVar

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.common import (
    SLEW_EVERY_MS,
    EngineContext,
    jitter,
    renewal_share,
    report,
    report_outage,
    warner,
)
from headrace.clients.drivers.event_loop import LoopCallbacks, Wakeup, outcome_of, running_loop
from headrace.clients.drivers.transports import Transports
from headrace.clients.engine import Engine, Outcome, Task
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.network.pool import Pool
from headrace.clock import SteadyClock, boot_ns
from headrace.errors import ClosedError
from headrace.forking import FORKED, disown_in_children

T = TypeVar("T")


class TcpAioDriver:
    """Runs the engine of one client. It is created and used on one running event loop."""

    def __init__(self, state: ClientState, config: ClientConfig) -> None:
        self._config = config
        self._loop = running_loop()
        self._transports = Transports(self, self._loop, config)
        self._clock = SteadyClock(monotonic_ns=boot_ns)
        self._slew_at_ms = 0
        self.pool = Pool(
            state,
            config,
            self._transports,
            now_ms=self._clock.now_ms,
            shuffle=random.shuffle,
            on_error=report,
            renewal_share=renewal_share,
            report=report_outage,
        )
        self.engine = Engine(
            state,
            self.pool,
            now_ms=self._clock.now_ms(),
            request_timeout_ms=config.request_timeout_ms,
            jitter=jitter,
        )
        self.engine.trouble.warn = warner(config.client_id)
        self._callbacks = LoopCallbacks(self.engine)
        self._armed_for = 0
        """The value of `pool.submitted` when the timer was last set."""
        self._context = EngineContext(self._enter, self._leave)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._wakeups: set[Wakeup] = set()
        self._closed = False
        self._forked = False
        disown_in_children(self)

    # The interface for clients

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the client."""
        return self._loop

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or belongs to the parent of this forked process."""
        return self._closed

    @property
    def trouble(self) -> str | None:
        """The reason why no broker can be reached at present; None if there is no known reason."""
        return self.pool.trouble

    @property
    def ended(self) -> bool:
        """Whether the client has no resources: it is closed, or its broker in this process is."""
        return self._closed

    @property
    def lost_connections(self) -> int:
        """The number of connections that have ended so far."""
        return self.pool.lost_connections

    def now_ms(self) -> int:
        """Return the time of the engine's clock. Any thread may call it."""
        return self._clock.now_ms()

    async def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result.

        Args:
            flow: The flow.
            timeout_ms: Milliseconds that the flow may take; None is `request.timeout.ms`.

        Raises:
            ApiError: A broker refused a request of the flow.
            TransportError: No broker answered in time.
            ClosedError: The client is closed.
        """
        self._enter()
        limit_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        wakeup = Wakeup()
        self._wakeups.add(wakeup)
        task = self.engine.spawn(flow, timeout_ms=limit_ms, on_done=wakeup, on_invoke=wakeup)
        self.arm()
        try:
            while not task.done:
                if self._closed:
                    raise self._closed_error()
                if task.invocation is not None:
                    await self._invoke(task)
                else:
                    await wakeup.wait()
        finally:
            self._wakeups.discard(wakeup)
            self.engine.cancel(task)
        return task.result()

    def enter(self) -> EngineContext:
        """Return a context in which the caller may use the engine: `with driver.enter() as engine`.

        Raises:
            ClosedError: The client is closed. Raised when the context is entered.
        """
        return self._context

    def start_background(self) -> None:
        """Do nothing: the event loop does what is due in any case."""

    async def connect(self) -> None:
        """Check that some broker answers; try each address once.

        Raises:
            TransportError: No broker answers.
        """
        self._enter()
        outcomes: list[Outcome] = []
        wakeup = Wakeup()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            wakeup()

        self.pool.connect(self.engine.now_ms + self._config.request_timeout_ms, done)
        self.arm()
        if not outcomes:
            await wakeup.wait()
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def close(self) -> None:
        """Close all connections. Running calls fail."""
        if self._closed:
            return
        self._closed = True
        opening = list(self._transports.opening.values())
        self.pool.close()
        for wakeup in self._wakeups:
            wakeup()
        if self._timer is not None:
            self._timer.cancel()
        self._callbacks.run()
        if opening:
            await asyncio.wait(opening)
        await asyncio.sleep(0)  # transports close in the next iteration of the loop

    def disown(self) -> None:
        """Close the client in a forked child. The transports belong to the parent process."""
        self._closed = self._forked = True

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"this client {FORKED}" if self._forked else "the client is closed")

    # The engine on the loop

    def refresh(self) -> None:
        """Pass the time of the clock to the engine."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._slew_at_ms:
            self._slew_at_ms = now_ms + SLEW_EVERY_MS
            self._clock.slew()
        self.engine.now_ms = max(self.engine.now_ms, now_ms)

    def arm(self) -> None:
        """Run the due callbacks, and set the timer for the next event. An earlier timer is not moved."""
        if self.engine.callbacks:
            self._callbacks.run()
        self._armed_for = self.pool.submitted
        due_ms = self.engine.next_deadline_ms
        pool_ms = self.pool.next_deadline_ms
        if pool_ms is not None and (due_ms is None or pool_ms < due_ms):
            due_ms = pool_ms
        if due_ms is None or self._closed:
            return
        if self._timer is None or due_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = due_ms
            wait_ms = max(0, due_ms - self._clock.now_ms())
            self._timer = self._loop.call_later(wait_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        self.refresh()
        self.pool.expire(self.engine.now_ms)
        try:
            self.engine.advance(self.engine.now_ms)
        except Exception as error:  # noqa: BLE001 - an error of one callback must not stop the others
            report(error)
        self.arm()

    def _enter(self) -> Engine:
        if self._closed:
            raise self._closed_error()
        self.refresh()
        return self.engine

    def _leave(self) -> None:
        # Runs once for each sent record. The timer already covers the pool, unless the pool got a request since.
        due_ms = self.engine.next_deadline_ms
        if (
            self.engine.callbacks
            or self.pool.submitted != self._armed_for
            or (due_ms is not None and (self._timer is None or due_ms < self._timer_ms))
        ):
            self.arm()

    async def _invoke(self, task: Task[Any]) -> None:
        """Run the program's function that a task needs; await its result if it is a coroutine."""
        value = await outcome_of(task)
        self.refresh()
        self.engine.resume(task, value)
        self.arm()
