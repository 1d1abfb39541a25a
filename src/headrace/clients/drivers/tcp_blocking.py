"""Runs a client's engine over TCP for blocking calls.

A thread of the program that is inside a call moves the client's bytes itself, so a call needs no switch to another
thread. While no thread is inside a call, the background thread of `start_background` does what is due: it wakes when
the engine has a deadline, and every few milliseconds while a response is pending.

One lock guards engine, pool and sockets. No thread holds it while it waits for bytes, or while code of the program
runs. If several threads are inside calls, one of them waits for bytes and serves the others.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.common import (
    INSIDE,
    SLEW_EVERY_MS,
    Callbacks,
    EngineContext,
    jitter,
    owned,
    renewal_share,
    report,
    report_outage,
    warner,
)
from headrace.clients.drivers.interrupts import GuardedCondition, interrupts, uninterrupted
from headrace.clients.drivers.sockets import Sockets
from headrace.clients.engine import Engine, Outcome, Task
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.network.pool import Pool
from headrace.clock import SteadyClock, boot_ns
from headrace.errors import ClosedError
from headrace.forking import FORKED, disown_in_children
from headrace.types import NEVER_MS

T = TypeVar("T")

LOOK_EVERY_MS: Final = 20
"""Milliseconds between two checks of the background thread for bytes while a response is pending."""
SERVE_EVERY_MS: Final = 5
"""Milliseconds after which a program that only makes short calls (`enter`) serves the connections in such a call."""
LONGEST_WAIT_MS: Final = 60_000
"""The longest single wait of a thread, in milliseconds."""
JOIN_S: Final = 5.0
"""Seconds for which `close` waits for the background thread, which may be running a callback."""


class TcpBlockingDriver:
    """Runs the engine of one blocking client."""

    def __init__(self, state: ClientState, config: ClientConfig) -> None:
        self.state = state
        self._config = config
        self._clock = SteadyClock(monotonic_ns=boot_ns)
        self._slew_at_ms = 0
        self._lock = threading.RLock()
        interrupts.guard(self._lock)
        self._inner: list[bool] = []
        """One entry for each entered context: whether its thread held the lock before."""
        self._sockets = Sockets(config)
        self.pool = Pool(
            state,
            config,
            self._sockets,
            now_ms=self._clock.now_ms,
            shuffle=random.shuffle,
            on_error=report,
            renewal_share=renewal_share,
            report=report_outage,
        )
        self._sockets.pool = self.pool
        self.engine = Engine(
            state,
            self.pool,
            now_ms=self._clock.now_ms(),
            request_timeout_ms=config.request_timeout_ms,
            jitter=jitter,
        )
        self.engine.trouble.warn = warner(config.client_id)
        self._context = EngineContext(self._enter, self._leave)
        self._calls = 0
        """The number of threads that are inside a call that waits, and do not run code of the program."""
        self._served = GuardedCondition(self._lock)
        """Notified after bytes were served. All threads inside calls wait for it, but the one that waits for bytes."""
        self._callbacks = Callbacks(self.engine)
        self._selecting_until_ms = 0
        """The latest time at which the thread that waits for bytes stops waiting. 0 if no thread waits for bytes."""
        self._changed = False
        """Whether the task of a call has ended, or needs a function of the program to run."""
        self._serve_at_ms = NEVER_MS
        """The time at which the next short call (`enter`) serves the connections."""
        self._thread: threading.Thread | None = None
        self._attention = threading.Condition(self._lock)
        """Notified when the background thread must wake earlier than it planned."""
        self._looks_at_ms = 0
        """The time at which the background thread wakes next. 0 while it is awake."""
        self._closed = False
        self._forked = False
        disown_in_children(self)

    # The interface for clients

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or belongs to the parent of this forked process."""
        return self._closed

    @property
    def ended(self) -> bool:
        """Whether the client has no resources: it is closed, or its broker in this process is."""
        return self._closed

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the clock. Always False: the client uses the clock of the process."""
        return False

    @property
    def lost_connections(self) -> int:
        """The number of connections that have ended so far."""
        return self.pool.lost_connections

    def now_ms(self) -> int:
        """Return the time of the engine's clock. Any thread may call it."""
        return self._clock.now_ms()

    @uninterrupted
    def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result.

        Args:
            flow: The flow.
            timeout_ms: Milliseconds that the flow may take; None is `request.timeout.ms`.

        Raises:
            ApiError: A broker refused a request of the flow.
            TransportError: No broker answered in time.
            ClosedError: The client is closed.
        """
        if owned(self._served):
            flow.close()
            raise RuntimeError(INSIDE)
        try:
            return self._run(flow, timeout_ms)
        finally:
            self._callbacks.run()  # the callbacks that became due have run when this returns

    def _run(self, flow: Flow[T], timeout_ms: int | None) -> T:
        limit_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        with self._context as engine:
            if self.pool.links:
                self._look()  # detects idle connections that brokers have closed
            self._calls += 1
            task = engine.spawn(
                flow, timeout_ms=limit_ms, on_done=self._task_changed, on_invoke=self._task_changed
            )
            try:
                while not task.done:
                    if self._closed:
                        raise self._closed_error()
                    if task.invocation is not None:
                        self._invoke(task)
                    elif engine.callbacks:
                        self._outside(self._callbacks.run)
                    elif interrupts.pending and interrupts.is_main:
                        self._outside(interrupts.deliver)
                    else:
                        self._round()
            finally:
                self._calls -= 1
                engine.cancel(task)
            return task.result()

    def enter(self) -> EngineContext:
        """Return a context in which the caller may use the engine: `with driver.enter() as engine`.

        Raises:
            ClosedError: The client is closed. Raised when the context is entered.
        """
        return self._context

    @uninterrupted
    def start_background(self) -> None:
        """Start to do what is due also while the program is not inside a call."""
        with self._context:
            if self._thread is None:
                name = f"{self._config.client_id}-background"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    @uninterrupted
    def connect(self) -> None:
        """Check that some broker answers; try each address once.

        Raises:
            TransportError: No broker answers.
        """
        outcomes: list[Outcome] = []
        with self._context as engine:
            self.pool.connect(engine.now_ms + self._config.request_timeout_ms, outcomes.append)
            self._calls += 1
            try:
                while not outcomes:
                    if interrupts.pending and interrupts.is_main:
                        self._outside(interrupts.deliver)
                    self._round()
            finally:
                self._calls -= 1
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    @uninterrupted
    def close(self) -> None:
        """Close all connections. Running calls fail."""
        inside = owned(self._served)
        with self._served:
            if self._closed:
                return
            self._closed = True
            self.pool.close()
            self._attention.notify_all()
            self._served.notify_all()
            while self._selecting_until_ms:
                self._sockets.wake()
                self._served.rest(LONGEST_WAIT_MS / 1000)
            self._sockets.end()
        if not inside:
            self._callbacks.run()
        if self._thread is not None and self._thread.ident != threading.get_ident():
            self._thread.join(JOIN_S)

    def disown(self) -> None:
        """Close the client in a forked child. The parent's sockets, epoll instance and locks are not changed."""
        if self._closed:
            return
        self._closed = self._forked = True
        self._lock = (
            threading.RLock()
        )  # a thread of the parent may have held the old lock at the fork
        self._served = GuardedCondition(self._lock)
        self._attention = threading.Condition(self._lock)
        self._thread = None
        self._selecting_until_ms = 0
        self._callbacks.disown()
        self._sockets.disown()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"this client {FORKED}" if self._forked else "the client is closed")

    # Entering and leaving the context

    def _enter(self) -> Engine:
        if not interrupts.on and interrupts.is_main:
            interrupts.wrap()
        inner = owned(self._served)
        self._lock.acquire()
        if self._closed:
            self._lock.release()
            raise self._closed_error()
        self._inner.append(inner)
        self._refresh()
        return self.engine

    def _leave(self) -> None:
        inner = self._inner.pop()
        try:
            if not inner and not self._closed:
                self._pass_by()
        finally:
            self._lock.release()
        if not inner and self.engine.callbacks:
            self._callbacks.run_in_passing()
        if interrupts.pending:
            interrupts.deliver()

    def _refresh(self) -> int:
        """Pass the time of the clock to the engine."""
        engine = self.engine
        now_ms = self._clock.now_ms()
        if now_ms >= self._slew_at_ms:
            self._slew_at_ms = now_ms + SLEW_EVERY_MS
            self._clock.slew()
        if now_ms > engine.now_ms:  # noqa: PLR1730 - runs once for each record, and max() takes twice as long
            engine.now_ms = now_ms
        return engine.now_ms

    def _pass_by(self) -> None:
        """Do what is due, or wake the thread that does it."""
        sockets = self._sockets
        now_ms = self.engine.now_ms
        if self._selecting_until_ms:
            # Another thread waits for bytes and serves. It must wake if something has changed.
            if self._changed or sockets.stirred or self._due_ms(now_ms) < self._selecting_until_ms:
                self._changed = sockets.stirred = False
                sockets.wake()
            return
        if sockets.stirred:
            sockets.stirred = False
            self._serve_at_ms = min(self._serve_at_ms, now_ms + SERVE_EVERY_MS)
        engine_due_ms = self.engine.next_deadline_ms
        due_ms = NEVER_MS if engine_due_ms is None else engine_due_ms
        if due_ms <= now_ms or self._serve_at_ms <= now_ms:
            self._look()
            due_ms = self._due_ms(now_ms)
        elif self._serve_at_ms < NEVER_MS:
            due_ms = min(due_ms, max(self._serve_at_ms, now_ms + LOOK_EVERY_MS))
        if due_ms < self._looks_at_ms and not self._calls:
            self._attention.notify()

    # Serving

    def _due_ms(self, now_ms: int) -> int:
        """Return the time at which a thread must serve the connections again, if no thread waits for bytes."""
        moments = [
            at
            for at in (self.engine.next_deadline_ms, self.pool.next_deadline_ms)
            if at is not None
        ]
        if self.pool.busy:
            moments.append(now_ms + LOOK_EVERY_MS)
        return min(moments, default=NEVER_MS)

    def _round(self, until_ms: int = NEVER_MS) -> None:
        """Wait until a connection can be served, or until `until_ms`; then serve what is ready."""
        now_ms = self._refresh()
        for due_ms in (self.engine.next_deadline_ms, self.pool.next_deadline_ms):
            if due_ms is not None and due_ms < until_ms:
                until_ms = due_ms
        wait_ms = max(0, min(until_ms - now_ms, LONGEST_WAIT_MS))
        if self._selecting_until_ms:
            if self._changed or self._sockets.stirred or until_ms < self._selecting_until_ms:
                self._changed = self._sockets.stirred = False
                self._sockets.wake()
            self._served.rest(wait_ms / 1000)
            return
        self._sockets.stirred = self._changed = False
        self._selecting_until_ms = now_ms + wait_ms + 1
        main = interrupts.rest(self._sockets.wake)
        if main and interrupts.pending:
            wait_ms = 0
        self._lock.release()
        try:
            ready = self._sockets.wait(wait_ms / 1000)
        finally:
            self._lock.acquire()
            if main:
                interrupts.resting = None
            self._selecting_until_ms = 0
            self._served.notify_all()
        self._serve(ready)

    def _look(self) -> None:
        """Serve the connections that are ready, without waiting."""
        self._serve(self._sockets.wait(0.0))

    def _serve(self, ready: Any) -> None:
        if self._closed:
            return
        self._sockets.serve(ready)
        now_ms = self._refresh()
        due_ms = self.pool.next_deadline_ms
        if due_ms is not None and due_ms <= now_ms:
            self.pool.expire(now_ms)
        try:
            self.engine.advance(now_ms)
        except Exception as error:  # noqa: BLE001 - an error of one callback must not stop the others
            report(error)
        if self.pool.busy:
            self._serve_at_ms = now_ms + SERVE_EVERY_MS
        else:
            due_ms = (
                self.pool.next_deadline_ms
            )  # SASL sessions expire also while no request is pending
            self._serve_at_ms = NEVER_MS if due_ms is None else due_ms
        self._sockets.stirred = False

    def _task_changed(self, _: Task[Any]) -> None:
        self._changed = True

    def _invoke(self, task: Task[Any]) -> None:
        """Run the program's function that a task needs, without the lock."""
        assert task.invocation is not None, (
            "the caller has checked that the task needs a function to run"
        )
        invocation = task.invocation
        value: object
        try:
            value = self._outside(invocation.function, *invocation.arguments)
        except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised there
            value = error
        self._refresh()
        self.engine.resume(task, value)

    def _outside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function without the lock, from inside a call. Meanwhile the background thread serves connections."""
        self._calls -= 1
        if self._due_ms(self.engine.now_ms) < self._looks_at_ms:
            self._attention.notify()
        try:
            return interrupts.call_outside(self._lock, function, arguments)
        finally:
            self._calls += 1

    # The background thread

    def _work(self) -> None:
        with self._lock:
            while not self._closed:
                try:
                    self._work_once()
                except BaseException as error:  # noqa: BLE001 - the client has no other background thread
                    report(error)

    def _work_once(self) -> None:
        """Serve the connections that are ready, then wait until more may be ready."""
        if not self._calls:
            self._look()
        if self.engine.callbacks and not self._calls:
            self._lock.release()
            try:
                self._callbacks.run()
            finally:
                self._lock.acquire()
            return
        now_ms = self._refresh()
        due_ms = self._due_ms(now_ms)
        if self._calls:
            due_ms = max(due_ms, now_ms + LOOK_EVERY_MS)
        self._looks_at_ms = due_ms
        self._attention.wait(max(0, min(due_ms - now_ms, LONGEST_WAIT_MS)) / 1000)
        self._looks_at_ms = 0
