"""The base class of both fakes: it handles requests under a lock, with faults, a log of calls and a clock."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, RLock
from typing import Any, Final

import msgspec

from headrace.embedded.clock import Clock
from headrace.testing.clock import LeapingClock
from headrace.testing.kinesis.calls import Call, CallLog
from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.faults import Exchange, Faults, Reply

_OK: Final = 200


class AwsService(ABC):
    """A service of AWS in memory, without a socket. Clients call `handle`, from any thread.

    Attributes:
        clock: The clock of the service.
        calls: The log of calls.
        faults: The faults that the test has injected.
    """

    NAMESPACE = ""
    """The prefix of error types in responses."""

    def __init__(self, clock: Clock | None) -> None:
        self.clock: Clock = clock or LeapingClock()
        self.calls = CallLog()
        self.faults = Faults()
        self._watchers: list[Callable[[], object]] = []
        self.lock = RLock()

    def advance(self, milliseconds: int) -> None:
        """Move the clock ahead at once."""
        clock: Any = self.clock
        with self.lock:
            clock.advance_to(clock.now_ms() + milliseconds)
        self.changed()

    def changed(self) -> None:
        """Call the functions that wait for a change."""
        for notify in tuple(self._watchers):
            notify()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until a condition holds; it is checked after every request. The call blocks the thread.

        Args:
            condition: The condition, such as `lambda: fake.calls.count("GetRecords") > 3`.
            timeout_s: The time limit in seconds.

        Raises:
            TimeoutError: The condition does not hold in time. The message contains the counts of calls.
        """
        happened = Event()
        deadline = time.monotonic() + timeout_s
        with self.watched(happened.set):
            while not condition():
                if not happened.wait(deadline - time.monotonic()):
                    raise TimeoutError(
                        f"the condition does not hold after {timeout_s} s; calls: {self.calls.counts()}"
                    )
                happened.clear()

    @contextmanager
    def watched(self, notify: Callable[[], object]) -> Iterator[None]:
        """Have a function called after every request and every move of the clock."""
        self._watchers.append(notify)
        try:
            yield
        finally:
            self._watchers.remove(notify)

    def handle(self, operation: str, body: bytes) -> Reply:
        """Handle a request of a client.

        Args:
            operation: The name of the operation, such as `GetRecords`.
            body: The request as JSON.
        """
        with self.lock:
            call = Call(operation, {}, self.clock.now_ms())
            refusal: str | None = None
            try:
                call.request = _decode(body)
                self.locate(call)
                reply = self._disturbed(call)
            except AwsError as error:
                refusal = error.kind
                reply = Reply(error.status, error.body(self.NAMESPACE))
            self.calls.note(call, refusal)
        self.changed()
        return reply

    def call(self, operation: str, **members: Any) -> dict[str, Any]:
        """Execute an operation for the test itself: without faults, limits per second and log.

        Args:
            operation: The name of the operation, such as `SplitShard`.
            **members: The members of the request; `bytes` are written in base64.

        Raises:
            AwsError: The request is refused.
        """
        with self.lock:
            request = msgspec.to_builtins(members)
            call = Call(operation, request, self.clock.now_ms())
            body = self.undisturbed(call).body
        self.changed()
        return dict(msgspec.json.decode(body)) if body else {}

    def _disturbed(self, call: Call) -> Reply:
        exchange = Exchange(call, lambda: self.perform(call), lambda: self.answer_empty(call))
        fault = self.faults.find(exchange)
        return self.perform(call) if fault is None else fault.take(exchange)

    def undisturbed(self, call: Call) -> Reply:
        """Execute a request of the test itself."""
        return self.perform(call)

    def answer_empty(self, call: Call) -> Reply:
        """Reply without the data that exists."""
        raise AwsError("InternalFailure", f"{call.operation} has no empty answer")

    @abstractmethod
    def locate(self, call: Call) -> None:
        """Set the stream and the shard of a call."""

    @abstractmethod
    def perform(self, call: Call) -> Reply:
        """Execute a request within the limits."""


def replied(answer: dict[str, object] | bytes | None) -> Reply:
    """Return the reply to a request that was executed."""
    if answer is None:
        return Reply(_OK)
    return Reply(_OK, answer if isinstance(answer, bytes) else msgspec.json.encode(answer))


def _decode(body: bytes) -> dict[str, Any]:
    """Return the members of a request. A member that is null counts as missing."""
    try:
        return _present(msgspec.json.decode(body or b"{}", type=dict[str, Any]))
    except msgspec.MsgspecError as error:
        raise AwsError("SerializationException", f"not a JSON object: {error}") from error


def _present(members: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _present(value) if isinstance(value, dict) else value
        for name, value in members.items()
        if value is not None
    }
