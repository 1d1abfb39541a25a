"""The part that the blocking and the asyncio driver of a broker in this process share.

Requests are passed to the broker as objects, without bytes, sockets or threads. One lock, which belongs to the target,
guards the broker and the engines of all its clients. A call that waits first does everything that is due for all
clients (`pump`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.common import Callbacks, EngineContext, jitter, owned, report, warner
from headrace.clients.drivers.interrupts import interrupts
from headrace.clients.drivers.local_target import LocalClient, LocalTarget, OnDone
from headrace.clients.engine import Engine, Outcome, Task, Timer
from headrace.clients.flows.effects import Call, ClientState
from headrace.errors import ClosedError, HeadraceError, InternalError, TransportError
from headrace.forking import FORKED, disown_in_children


class _Pending:
    """A call to which the broker has not responded."""

    __slots__ = ("done", "give_up", "on_done", "timer", "transport")

    def __init__(self, transport: LocalTransport, on_done: OnDone) -> None:
        self.transport = transport
        self.on_done = on_done
        self.done = False
        self.timer: Timer | None = None
        self.give_up: Callable[[], object] | None = None

    def complete(self, outcome: Outcome) -> None:
        """Call `on_done` with the outcome, unless the call has one."""
        if self.done:
            return
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.transport.open.pop(self, None)
        try:
            self.on_done(outcome)
        except Exception as error:  # noqa: BLE001 - other callers must get their outcomes nevertheless
            report(error)

    def fail(self, error: HeadraceError) -> None:
        """Cancel the request in the broker, and end the call with an error."""
        if self.give_up is not None:
            self.give_up()
        self.complete(error)

    def expire(self) -> None:
        """End the call with an error, because its deadline has passed."""
        self.fail(TransportError("the embedded broker did not answer in time"))


class LocalTransport:
    """Passes calls to a broker in this process."""

    def __init__(self, target: LocalTarget, client: LocalClient) -> None:
        self.lost_connections = 0
        self.open: dict[_Pending, None] = {}
        """The calls without an outcome, in the order of submission. They fail in this order, so that a seed determines
        the whole simulation run."""
        self._target = target
        self._client = client
        self._closed = False

    def submit(self, call: Call, deadline_ms: int, on_done: OnDone) -> None:
        """Pass a request to the broker; call `on_done` with its outcome, at the deadline at the latest."""
        pending = _Pending(self, on_done)
        if self._closed:
            pending.complete(ClosedError("the client was closed"))
            return
        try:
            pending.give_up = self._target.submit(self._client, call, pending.complete)
        except Exception as error:  # noqa: BLE001 - it is the outcome of the call
            what = f"{type(call.request).__name__} failed in the embedded broker"
            pending.complete(InternalError.of(error, what))
        if not pending.done:
            pending.timer = self._client.engine.at(deadline_ms, pending.expire)
            self.open[pending] = None

    def close(self) -> None:
        """Fail all pending calls, and all later ones."""
        self._closed = True
        self.fail_open(ClosedError("the client was closed"))

    def fail_open(self, error: HeadraceError) -> None:
        """Fail the pending calls in the order of their submission."""
        for pending in list(self.open):
            pending.fail(error)


class LocalDriver:
    """The base class of `LocalBlockingDriver` and `LocalAioDriver`."""

    wraps_signals = False
    """Whether signal handlers are deferred while the main thread is inside the client (`interrupts.py`)."""

    def __init__(self, target: LocalTarget, config: ClientConfig, state: ClientState) -> None:
        self.target = target
        self.client_id = config.client_id
        self.inbox: deque[tuple[OnDone, Outcome]] = deque()
        self._config = config
        self._transport = LocalTransport(target, self)
        state.objects = target.objects
        self.engine = Engine(
            state,
            self._transport,
            now_ms=target.now_ms(),
            request_timeout_ms=config.request_timeout_ms,
            jitter=jitter,
        )
        self.engine.trouble.warn = warner(config.client_id)
        self._closed = False
        self._orphaned = False
        """Whether the broker was closed."""
        self._forked = False
        self._inner: list[bool] = []
        """One entry for each entered context: whether its thread held the lock before."""
        self._callbacks = Callbacks(self.engine)
        self._context = EngineContext(self._enter, self._leave)
        disown_in_children(self)
        with target.condition:
            target.attach(self)

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or belongs to the parent of this forked process."""
        return self._closed

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the broker's clock. Then no thread of Headrace may use the client."""
        return self.target.by_hand

    @property
    def ended(self) -> bool:
        """Whether the client has no resources: it is closed, or its broker in this process is."""
        return self._closed or self._orphaned

    def disown(self) -> None:
        """Close the client in a forked child. The broker belongs to the parent process."""
        self._closed = self._forked = True
        self._callbacks.disown()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"this client {FORKED}" if self._forked else "the client is closed")

    @property
    def runs_here(self) -> bool:
        """Whether the current thread may run the engine."""
        return True

    @property
    def trouble(self) -> str | None:
        """The reason why the broker cannot be reached. Always None: the broker is in this process."""
        return None

    @property
    def lost_connections(self) -> int:
        """The number of connections that have ended so far. Always 0: there are no connections."""
        return 0

    def now_ms(self) -> int:
        """Return the time of the engine's clock. Any thread may call it."""
        return self.target.now_ms()

    def wake(self) -> None:
        """Wake the calls that wait for the target's condition."""
        self.target.condition.notify_all()

    def target_closed(self) -> None:
        """Fail the pending calls, because the broker was closed."""
        self._orphaned = True
        self._transport.fail_open(TransportError("the embedded broker was closed"))

    def _changed(self, _: Task[Any]) -> None:
        self.wake()

    def enter(self) -> EngineContext:
        """Return a context in which the caller may use the engine: `with driver.enter() as engine`.

        Raises:
            ClosedError: The client is closed. Raised when the context is entered.
        """
        return self._context

    def _enter(self) -> Engine:
        inner = owned(self.target.condition)
        if self.wraps_signals and not interrupts.on and interrupts.is_main:
            interrupts.wrap()
        self.target.condition.acquire()
        if self._closed:
            self.target.condition.release()
            raise self._closed_error()
        self._inner.append(inner)
        self._refresh()
        return self.engine

    def _leave(self) -> None:
        target = self.target
        inner = self._inner.pop()
        try:
            if not inner:
                due_ms = self.engine.next_deadline_ms
                if target.stirred or (due_ms is not None and due_ms <= self.engine.now_ms):
                    target.pump()
                elif due_ms is not None and due_ms < target.sleeps_until_ms:
                    target.condition.notify_all()
        finally:
            target.condition.release()
        if not inner and self.engine.callbacks:
            self._call_back_in_passing()
        if interrupts.pending:
            interrupts.deliver()

    def call_back(self) -> None:
        """Run the due callbacks of the program. The caller does not hold the lock."""
        self._callbacks.run()

    def _call_back_in_passing(self) -> None:
        self._callbacks.run_in_passing()

    def _refresh(self) -> None:
        self.engine.now_ms = max(self.engine.now_ms, self.target.now_ms())

    def _limit_ms(self, timeout_ms: int | None) -> int:
        return self._config.request_timeout_ms if timeout_ms is None else timeout_ms

    def _end(self) -> bool:
        """Close the client, with the lock held. Return whether it was open."""
        if self._closed:
            return False
        self._closed = True
        self._transport.close()
        self.target.detach(self)
        return True


def settled(task: Task[Any]) -> bool:
    """Return whether a task has an outcome, or needs a function of the program to run."""
    return task.done or task.invocation is not None
