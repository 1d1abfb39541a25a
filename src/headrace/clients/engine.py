"""The engine of a client: it runs the client's flows and timers.

An engine does no I/O. A driver passes it the time (`advance`) and the outcomes of calls (through the transport), and
asks when to call it next (`next_deadline_ms`). Everything that a client does, for a call of the program or by itself,
is a task: a running flow. A task runs until it must wait. Steps of tasks never overlap, so nothing changes between two
yields of a flow.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from headrace.clients.flows.effects import (
    ANY_NODE,
    Call,
    ClientState,
    Effect,
    Flow,
    Invoke,
    Sleep,
    Wait,
)
from headrace.clients.trouble import Trouble, advised
from headrace.errors import HeadraceError, InternalError, TransportError
from headrace.protocol.codec import Message

T = TypeVar("T")

Outcome = Message | HeadraceError | None
"""The outcome of a call: the response, an error, or None for a request without a response."""

UNLIMITED_MS: Final = 1 << 60
"""A timeout that never expires, in milliseconds."""
TIMERS_KEPT: Final = 64
"""The least number of timers at which cancelled ones are removed."""
LATE_MS: Final = 1_000
"""Milliseconds after its deadline at which the engine ends a call that the transport should have ended."""
ANY_NODE_SHARE: Final = 3
"""A call to any broker may use only this part (a third) of its time for one broker."""


class Transport(Protocol):
    """Carries calls to brokers."""

    @property
    def lost_connections(self) -> int:
        """The number of connections that have ended so far."""

    def submit(self, call: Call, deadline_ms: int, on_done: Callable[[Outcome], object]) -> None:
        """Send a request without waiting; call `on_done` with its outcome, at the deadline at the latest.

        The call may come before this method returns. It must not come while a broker in this process handles another
        request, because the engine continues at once.
        """


class Timer:
    """A function that the engine calls at a time."""

    __slots__ = ("callback", "when_ms")

    def __init__(self, when_ms: int, callback: Callable[[], object] | None) -> None:
        self.when_ms = when_ms
        self.callback = callback
        """The function; None when it was called or cancelled."""

    @property
    def pending(self) -> bool:
        """Whether the timer is neither due nor cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        """Cancel the timer: its function is not called."""
        self.callback = None


class TaskCancelled(HeadraceError):  # noqa: N818 - as asyncio's CancelledError: no fault
    """The operation was cancelled before it had an outcome."""


class Task(Generic[T]):
    """A flow that is running or has ended."""

    __slots__ = (
        "alarm",
        "deadline_ms",
        "done",
        "failure",
        "flow",
        "invocation",
        "late",
        "on_done",
        "on_invoke",
        "outcome",
        "paused_turn",
        "turn",
    )

    def __init__(self, flow: Flow[T], deadline_ms: int) -> None:
        self.flow = flow
        self.deadline_ms = deadline_ms
        self.done = False
        self.failure: HeadraceError | None = None
        """The error after which the flow retried last; None if it did not retry."""
        self.outcome: T | BaseException | None = None
        self.invocation: Invoke | None = None
        """The call of the program's code that the task waits for; the driver makes it and calls `Engine.resume`."""
        self.on_done: Callable[[Task[T]], object] | None = None
        self.on_invoke: Callable[[Task[T]], object] | None = None
        self.turn = 0
        """The number of yields, so that the end of an earlier wait cannot end a later one."""
        self.paused_turn = -1
        """The turn that the alarm may end."""
        self.alarm: Timer | None = None
        self.late: object = None
        """The value that the flow gets if the alarm ends its turn."""

    def result(self) -> T:
        """Return the result of the flow, or raise its exception; only when `done`."""
        assert self.done, "the task is not done"
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome  # type: ignore[return-value]  # it is T when it is no exception


class Engine:
    """Runs the flows of one client."""

    def __init__(
        self,
        state: ClientState,
        transport: Transport,
        *,
        now_ms: int,
        request_timeout_ms: int,
        jitter: Callable[[], float],
    ) -> None:
        """Prepare an engine.

        Args:
            state: The state that the flows share.
            transport: Sends calls to brokers.
            now_ms: The time in milliseconds since 1970, by a clock that never goes back.
            request_timeout_ms: Milliseconds that a call without a timeout of its own may take.
            jitter: Returns a factor for a backoff, around 1.
        """
        self.state = state
        self.transport = transport
        self.now_ms = now_ms
        """The time that the driver has passed last, in milliseconds since 1970."""
        self.callbacks: deque[Callable[[], object]] = deque()
        """Callbacks of the program that are due, in order. The driver runs them without a lock. An exception of a
        callback must not affect anything else."""
        self.trouble = Trouble()
        """The errors after which the client retries."""
        self._request_timeout_ms = request_timeout_ms
        self._jitter = jitter
        self._ready: deque[tuple[Task[Any], Any]] = deque()
        self._running = False
        self._timers: list[tuple[int, int, Timer]] = []
        self._prune_at = TIMERS_KEPT
        """The number of timers at which cancelled ones are removed. Most timers are cancelled before they are due."""
        self._timer_numbers = itertools.count()
        self._waiting: dict[Task[Any], int] = {}
        """The tasks that are in a `Wait`, each with its turn."""

    @property
    def next_deadline_ms(self) -> int | None:
        """The latest time for the next `advance`; None if nothing depends on the time."""
        timers = self._timers
        while timers and not timers[0][2].pending:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def advance(self, now_ms: int) -> None:
        """Set the time, run the timers that are due, and continue the tasks that waited for them."""
        self.now_ms = max(self.now_ms, now_ms)
        while (due_ms := self.next_deadline_ms) is not None and due_ms <= self.now_ms:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._run_ready()

    def at(self, when_ms: int, callback: Callable[[], object]) -> Timer:
        """Call a function at a time, from `advance`."""
        timer = Timer(when_ms, callback)
        heapq.heappush(self._timers, (when_ms, next(self._timer_numbers), timer))
        if len(self._timers) > self._prune_at:
            self._timers = [entry for entry in self._timers if entry[2].pending]
            heapq.heapify(self._timers)
            self._prune_at = max(TIMERS_KEPT, 2 * len(self._timers))
        return timer

    def submit(self, call: Call, on_done: Callable[[Outcome], object]) -> None:
        """Make a call outside a flow; `on_done` is called with its outcome, possibly before this method returns."""
        self.transport.submit(call, self.now_ms + self._limit_ms(call), on_done)

    def notify(self) -> None:
        """Continue the tasks that wait for a change."""
        waiting, self._waiting = self._waiting, {}
        for task, turn in waiting.items():
            self._resume(task, turn, None)

    def spawn(
        self,
        flow: Flow[T],
        *,
        timeout_ms: int = UNLIMITED_MS,
        on_done: Callable[[Task[T]], object] | None = None,
        on_invoke: Callable[[Task[T]], object] | None = None,
    ) -> Task[T]:
        """Start a flow, and run it until it first waits.

        Args:
            flow: The flow.
            timeout_ms: Milliseconds that the flow may take.
            on_done: Called with the task when it has ended, possibly before this method returns.
            on_invoke: Called with the task when it needs a call of the program's code. None makes that an error.
        """
        task = Task(flow, self.now_ms + timeout_ms)
        task.on_done = on_done
        task.on_invoke = on_invoke
        self._ready.append((task, None))
        self._run_ready()
        return task

    def resume(self, task: Task[Any], value: object) -> None:
        """Continue a task after its `Invoke`, with the result or the exception of the program's code."""
        task.invocation = None
        self._resume(task, task.turn, value)

    def cancel(self, task: Task[Any]) -> None:
        """Cancel a task. Its requests that are in flight are not withdrawn."""
        if not task.done:
            self._finish(task, TaskCancelled("the operation was cancelled"))
            task.flow.close()

    def _limit_ms(self, call: Call) -> int:
        if call.timeout_ms is not None:
            return call.timeout_ms
        if call.node == ANY_NODE:
            return self._request_timeout_ms // ANY_NODE_SHARE
        return self._request_timeout_ms

    # Steps of tasks

    def _resume(self, task: Task[Any], turn: int, value: object) -> None:
        if task.done or task.turn != turn:
            return
        task.turn += 1
        self._ready.append((task, value))
        self._run_ready()

    def _run_ready(self) -> None:
        if self._running:
            return
        self._running = True
        try:
            while self._ready:
                task, value = self._ready.popleft()
                if not task.done:
                    self._step(task, value)
        finally:
            self._running = False

    def _step(self, task: Task[Any], value: object) -> None:
        flow = task.flow
        try:
            effect = flow.throw(value) if isinstance(value, BaseException) else flow.send(value)
        except StopIteration as stop:
            self._finish(task, stop.value)
        except BaseException as error:  # noqa: BLE001 - the task has it as its outcome
            if task.on_invoke is None:  # no program waits for its own exceptions
                error = InternalError.of(error, "the client failed in the background")
            self._finish(task, error)
        else:
            try:
                self._carry_out(task, effect)
            except Exception as error:  # noqa: BLE001 - the flow gets it, and continues or ends
                self._resume(task, task.turn, InternalError.of(error, "the call failed"))

    def _finish(self, task: Task[Any], outcome: object) -> None:
        task.done = True
        task.outcome = outcome
        task.invocation = None
        self._waiting.pop(task, None)
        if task.alarm is not None:
            task.alarm.cancel()
        if task.on_done is not None:
            try:
                task.on_done(task)
            except Exception as error:  # noqa: BLE001 - the tasks that are ready besides go on
                self.callbacks.append(partial(_raise, error))

    def _carry_out(self, task: Task[Any], effect: Effect) -> None:
        turn = task.turn
        if isinstance(effect, Call):
            self._call(task, effect, lambda outcome: self._resume(task, turn, outcome))
        elif isinstance(effect, tuple):
            self._gather(task, effect)
        elif isinstance(effect, Sleep):
            self._sleep(task, effect)
        elif isinstance(effect, Wait):
            self._waiting[task] = turn
            until_ms = task.deadline_ms if effect.until_ms is None else effect.until_ms
            self._resume_at(task, min(until_ms, task.deadline_ms))
        elif task.on_invoke is not None:
            task.invocation = effect
            task.on_invoke(task)
        else:
            self._resume(
                task, turn, RuntimeError("a background task cannot run the program's code")
            )

    def _call(self, task: Task[Any], call: Call, on_done: Callable[[Outcome], object]) -> None:
        deadline_ms = min(self.now_ms + self._limit_ms(call), task.deadline_ms)
        name = type(call.request).__name__
        if deadline_ms <= self.now_ms:
            on_done(_timed_out(f"{name} was not sent in time", task.failure))
            return
        turn = task.turn
        self.transport.submit(call, deadline_ms, on_done)
        if task.turn == turn and not task.done:
            late = TransportError(f"{name} had no outcome in time")
            self._resume_at(task, deadline_ms + LATE_MS, late)

    def _gather(self, task: Task[Any], calls: tuple[Call, ...]) -> None:
        turn = task.turn
        outcomes: list[Outcome] = [None] * len(calls)
        missing = len(calls)

        def answered(index: int, outcome: Outcome) -> None:
            nonlocal missing
            outcomes[index] = outcome
            missing -= 1
            if not missing:
                self._resume(task, turn, tuple(outcomes))

        if not calls:
            self._resume(task, turn, ())
        for index, call in enumerate(calls):
            self._call(task, call, partial(answered, index))

    def _sleep(self, task: Task[Any], sleep: Sleep) -> None:
        until_ms = self.now_ms + max(1, round(sleep.duration_ms * self._jitter()))
        cause, before = sleep.cause, task.failure
        task.failure = cause
        self.trouble.note(cause, self.now_ms)
        if until_ms < task.deadline_ms:
            self._resume_at(task, until_ms)
        elif type(cause) is TransportError:
            # The last attempt may have had no time left; the error before it explains more.
            self._resume(task, task.turn, _timed_out(advised(cause), before))
        else:
            self._resume(task, task.turn, cause)

    def _resume_at(self, task: Task[Any], when_ms: int, late: object = None) -> None:
        task.paused_turn = task.turn
        task.late = late
        alarm = task.alarm
        if when_ms >= UNLIMITED_MS or (alarm and alarm.pending and alarm.when_ms == when_ms):
            return  # a flow that waits again and again for one moment needs one timer

        def due() -> None:
            if task.paused_turn == task.turn:
                self._waiting.pop(task, None)
                self._resume(task, task.turn, task.late)

        if alarm is not None:
            alarm.cancel()
        task.alarm = self.at(when_ms, due)


def _raise(error: Exception) -> None:
    raise error


def _timed_out(text: str, before: HeadraceError | None) -> TransportError:
    """Return the error of an operation without time, with what went wrong before, where the text does not say it."""
    if before is None or str(before) in text:
        return TransportError(text)
    return TransportError(f"{text}; before that: {advised(before)}")
