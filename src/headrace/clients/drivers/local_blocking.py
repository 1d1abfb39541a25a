"""Runs the engine of one client of a broker in this process, for blocking calls."""

from __future__ import annotations

from typing import TypeVar

from headrace.clients.drivers.common import INSIDE, owned
from headrace.clients.drivers.interrupts import interrupts, uninterrupted
from headrace.clients.drivers.local import LocalDriver, settled
from headrace.clients.engine import Task
from headrace.clients.flows.effects import Flow

T = TypeVar("T")


class LocalBlockingDriver(LocalDriver):
    """Runs the engine of one blocking client."""

    wraps_signals = True

    @uninterrupted
    def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result.

        Args:
            flow: The flow.
            timeout_ms: Milliseconds that the flow may take; None is `request.timeout.ms`.

        Raises:
            ApiError: The broker refused a request of the flow.
            TransportError: The broker did not answer in time.
            ClosedError: The client is closed.
        """
        if owned(self.target.condition):
            flow.close()
            raise RuntimeError(INSIDE)
        try:
            return self._run(flow, timeout_ms)
        finally:
            self.call_back()  # the callbacks that became due have run when this returns

    def _run(self, flow: Flow[T], timeout_ms: int | None) -> T:
        target = self.target
        with self._context:
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
        """Start to do what is due also while the program is not inside a call."""
        with self.target.condition:
            self.target.start_background()

    @uninterrupted
    def connect(self) -> None:
        """Check that the client is open. A broker in this process always answers."""
        with self._context:
            pass

    @uninterrupted
    def close(self) -> None:
        """Detach the client from the broker. Running calls fail."""
        inside = owned(self.target.condition)
        with self.target.condition:
            if self._end():
                self.target.condition.notify_all()
        if not inside:
            self.call_back()

    def _call_back_outside(self) -> None:
        interrupts.call_outside(self.target.condition, self.call_back)

    def _invoke(self, task: Task[T]) -> None:
        """Run the program's function that a task needs, without the lock."""
        assert task.invocation is not None, (
            "the caller has checked that the task needs a function to run"
        )
        invocation = task.invocation
        condition = self.target.condition
        value: object
        try:
            value = interrupts.call_outside(condition, invocation.function, invocation.arguments)
        except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised there
            value = error
        self._refresh()
        self.engine.resume(task, value)
