"""Runs clients of a broker in this process: requests are handed over as objects, without bytes, sockets or threads.

One lock, of the target, guards the broker and the engines of all its clients. A call that waits first does everything
that is due (`pump`), for all clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.entry import (
    INSIDE,
    Callbacks,
    Entry,
    jitter,
    owned,
    report,
    warner,
)
from headrace.clients.drivers.interrupts import GuardedCondition, interrupts, uninterrupted
from headrace.clients.engine import Engine, Outcome, Task, Timer
from headrace.clients.flows.effects import Call, ClientState, Flow, GivenObjects
from headrace.errors import ClosedError, ConfigError, HeadraceError, InternalError, TransportError
from headrace.forking import FORKED, disown_in_children

if TYPE_CHECKING:
    from headrace.clients.partitioners import Partitioner
    from headrace.registers import Named

T = TypeVar("T")

OnDone = Callable[[Outcome], object]


class LocalClient(Protocol):
    """A client of a broker in this process, as the broker sees it."""

    engine: Engine
    client_id: str
    inbox: deque[tuple[OnDone, Outcome]]
    """Outcomes that came while the broker was at work; `LocalTarget.pump` passes them on."""

    @property
    def runs_here(self) -> bool:
        """Whether the present thread may run the client's engine."""

    def wake(self) -> None:
        """Something has happened to the client: its engine ran, or something is in its inbox."""

    def target_closed(self) -> None:
        """The broker was closed: fail the calls that it has not answered."""

    def call_back(self) -> None:
        """Run the program's callbacks that are due; without the lock."""


class LocalBroker(Protocol):
    """A broker in this process as a program has it, in place of an address: `headrace.Broker`."""

    @property
    def _port(self) -> LocalTarget:
        """The interface for the clients of the broker."""

    def now_ms(self) -> int:
        """Return the time of the broker, in milliseconds since 1970."""


class LocalTarget(Protocol):
    """A broker in this process, with its clock and its lock."""

    condition: GuardedCondition
    """Over a re-entrant lock. Held for every other member, and for every use of an engine."""
    stirred: bool
    """Whether there is something to do for `pump`."""
    sleeps_until_ms: int
    """When the background will look next; 0 when there is none or it is awake."""

    @property
    def objects(self) -> GivenObjects:
        """The classes and objects that programs have given to topics."""

    @property
    def virtual(self) -> bool:
        """Whether time stands still but for `wait`, which moves it."""

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the clock, so that nothing may happen in a thread that it did not start."""

    def now_ms(self) -> int:
        """Return the time of the broker."""

    def attach(self, client: LocalClient) -> None:
        """Take on a client.

        Raises:
            ClosedError: The broker is closed.
        """

    def detach(self, client: LocalClient) -> None:
        """Remove a client."""

    def start_background(self) -> None:
        """Let what is due happen also while no client is inside a call, if time passes by itself."""

    def submit(
        self, client: LocalClient, call: Call, on_done: OnDone
    ) -> Callable[[], object] | None:
        """Pass a request to the broker; `on_done` is called with the outcome, at once or by `pump`.

        Returns:
            A function that cancels the request in the broker; None if there is nothing to cancel.
        """

    def share_partitioner(self, topic: str, named: Named, new: Partitioner) -> Partitioner:
        """Return the partitioner of a topic, by the name in its metadata: what all use, or a `new` one."""

    def pump(self) -> int | None:
        """Let everything happen that can happen now.

        Returns:
            When to call again at the latest; None when nothing depends on the time.
        """

    def wait(self, until_ms: int | None) -> None:
        """Wait until a time, or until another thread has changed something."""


class _Pending:
    """A call that the broker has not answered."""

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
        except Exception as error:  # noqa: BLE001 - one caller's fault must not leave the others waiting
            report(error)

    def fail(self, error: HeadraceError) -> None:
        """End the call with an error."""
        if self.give_up is not None:
            self.give_up()
        self.complete(error)

    def expire(self) -> None:
        """End the call, because its deadline has passed."""
        self.fail(TransportError("the embedded broker did not answer in time"))


class LocalTransport:
    """Carries calls to a broker in this process."""

    def __init__(self, target: LocalTarget, client: LocalClient) -> None:
        self.lost_connections = 0
        self.open: dict[_Pending, None] = {}
        """The calls without an outcome, in order. They fail in this order, so that a seed determines a run."""
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
        """Fail the calls that have no answer yet."""
        for pending in list(self.open):
            pending.fail(error)


class Local:
    """What the blocking and the asyncio driver have in common."""

    wraps_signals = False
    """Whether handlers of signals are kept from the main thread while it is inside."""

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
        """For each entry that is open: whether its thread was inside before."""
        self._callbacks = Callbacks(self.engine)
        self._entry = Entry(self._enter, self._leave)
        disown_in_children(self)
        with target.condition:
            target.attach(self)

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or belongs to the parent of this forked process."""
        return self._closed

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the clock of the broker: then no thread of Headrace may use the client."""
        return self.target.by_hand

    @property
    def ended(self) -> bool:
        """Whether the client has no resources: it is closed, or its broker in this process is."""
        return self._closed or self._orphaned

    def disown(self) -> None:
        """Become closed, in a forked child: the broker is the parent's."""
        self._closed = self._forked = True
        self._callbacks.disown()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"this client {FORKED}" if self._forked else "the client is closed")

    @property
    def runs_here(self) -> bool:
        """Whether the present thread may run the engine."""
        return True

    @property
    def trouble(self) -> str | None:
        """Why the broker cannot be asked: it can."""
        return None

    @property
    def lost_connections(self) -> int:
        """How many connections ended so far: none, there are none."""
        return 0

    def now_ms(self) -> int:
        """Return the time of the engine's clock. Any thread may call it."""
        return self.target.now_ms()

    def wake(self) -> None:
        """Something has happened to the client."""
        self.target.condition.notify_all()

    def target_closed(self) -> None:
        """The broker was closed: its calls have no answer."""
        self._orphaned = True
        self._transport.fail_open(TransportError("the embedded broker was closed"))

    def _changed(self, _: Task[Any]) -> None:
        self.wake()

    def enter(self) -> Entry:
        """Return a context in which the engine may be used at once: `with driver.enter() as engine`.

        Raises:
            ClosedError: On entry: the client is closed.
        """
        return self._entry

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
        """Run the program's callbacks that are due, with the lock free."""
        self._callbacks.run()

    def _call_back_in_passing(self) -> None:
        self._callbacks.run_in_passing()

    def _refresh(self) -> None:
        self.engine.now_ms = max(self.engine.now_ms, self.target.now_ms())

    def _limit_ms(self, timeout_ms: int | None) -> int:
        return self._config.request_timeout_ms if timeout_ms is None else timeout_ms

    def _end(self) -> bool:
        """Close, with the lock held; tell whether it was open."""
        if self._closed:
            return False
        self._closed = True
        self._transport.close()
        self.target.detach(self)
        return True


def port_of(target: object) -> LocalTarget:
    """Return what the clients of a broker in this process use.

    Raises:
        ConfigError: The target is no such broker.
    """
    port: LocalTarget | None = getattr(target, "_port", None)
    if port is None:
        raise ConfigError(
            f"a client's target is an address, 'HOST:PORT', or a headrace.Broker, not {target!r}"
        )
    return port


class LocalDriver(Local):
    """Runs the engine of one client of a broker in this process, for a program that waits."""

    wraps_signals = True

    @uninterrupted
    def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result.

        Args:
            flow: The flow.
            timeout_ms: Milliseconds that the flow may take; None is `request.timeout.ms`.

        Raises:
            ApiError: The broker refused.
            TransportError: The broker did not answer in time.
            ClosedError: The client is closed.
        """
        if owned(self.target.condition):
            flow.close()
            raise RuntimeError(INSIDE)
        try:
            return self._run(flow, timeout_ms)
        finally:
            self.call_back()  # what became due on the way has been told when this returns

    def _run(self, flow: Flow[T], timeout_ms: int | None) -> T:
        target = self.target
        with self._entry:
            task = self.engine.spawn(
                flow,
                timeout_ms=self._limit_ms(timeout_ms),
                on_done=self._changed,
                on_invoke=self._changed,
            )
            try:
                while not task.done:
                    if self._closed:
                        raise self._closed_error()
                    if task.invocation is not None:
                        self._invoke(task)
                        continue
                    until_ms = target.pump()
                    if self.engine.callbacks:
                        self._call_back_outside()
                        continue
                    if interrupts.pending and interrupts.is_main:
                        interrupts.call_outside(target.condition, interrupts.deliver)
                    elif not settled(task):
                        target.wait(until_ms)
                        self._refresh()
            finally:
                self.engine.cancel(task)
            return task.result()

    @uninterrupted
    def start_background(self) -> None:
        """Also do what is due while the program is not inside a call."""
        with self.target.condition:
            self.target.start_background()

    @uninterrupted
    def connect(self) -> None:
        """Make sure that the broker answers: it does, unless the client is closed."""
        with self._entry:
            pass

    @uninterrupted
    def close(self) -> None:
        """Leave the broker; running calls fail."""
        inside = owned(self.target.condition)
        with self.target.condition:
            if self._end():
                self.target.condition.notify_all()
        if not inside:
            self.call_back()

    def _call_back_outside(self) -> None:
        interrupts.call_outside(self.target.condition, self.call_back)

    def _invoke(self, task: Task[T]) -> None:
        """Run the program's code for a task, with the lock free."""
        assert task.invocation is not None, "a task asks before it is answered"
        invocation = task.invocation
        condition = self.target.condition
        value: object
        try:
            value = interrupts.call_outside(condition, invocation.function, invocation.arguments)
        except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised there
            value = error
        self._refresh()
        self.engine.resume(task, value)


def settled(task: Task[Any]) -> bool:
    """Whether a task has an outcome, or waits for the program's code."""
    return task.done or task.invocation is not None
