"""The base of both fakes: requests in, replies out, under a lock; with faults, a log and a clock."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, RLock
from typing import Any, Final

import msgspec

from headrace.streams.clock import Clock
from headrace.testing.clock import LeapingClock
from headrace.testing.kinesis.calls import Call, CallLog
from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.faults import Exchange, Faults, Reply

_OK: Final = 200


class Service(ABC):
    """A service of AWS in memory, without a socket: `handle` is all of it. Any thread may call it.

    Attributes:
        clock: Its time.
        calls: What was asked of it.
        faults: What it does wrong on purpose.
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
        """Let time pass at once."""
        clock: Any = self.clock
        with self.lock:
            clock.advance_to(clock.now_ms() + milliseconds)
        self.changed()

    def changed(self) -> None:
        """Tell those who wait for a change."""
        for tell in tuple(self._watchers):
            tell()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until something is so, looking again after every request. It blocks the thread.

        Args:
            condition: What to wait for, such as `lambda: fake.calls.count("GetRecords") > 3`.
            timeout_s: How long at most.

        Raises:
            TimeoutError: It is not so by then; it says what was asked of the fake.
        """
        happened = Event()
        deadline = time.monotonic() + timeout_s
        with self.watched(happened.set):
            while not condition():
                if not happened.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"not so after {timeout_s} s; calls: {self.calls.counts()}")
                happened.clear()

    @contextmanager
    def watched(self, tell: Callable[[], object]) -> Iterator[None]:
        """Have something called after every request and every leap of time."""
        self._watchers.append(tell)
        try:
            yield
        finally:
            self._watchers.remove(tell)

    def handle(self, operation: str, body: bytes) -> Reply:
        """Do what a client asks for.

        Args:
            operation: The name, such as `GetRecords`.
            body: The request, in JSON.
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
        """Do something as the test itself: no fault and no limit by the second applies, and it is not in the log.

        Args:
            operation: The name, such as `SplitShard`.
            **members: The request's; `bytes` are written in base64.

        Raises:
            AwsError: It is refused.
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
        """Do what the test itself asks for."""
        return self.perform(call)

    def answer_empty(self, call: Call) -> Reply:
        """Answer without what there is."""
        raise AwsError("InternalFailure", f"{call.operation} has no empty answer")

    @abstractmethod
    def locate(self, call: Call) -> None:
        """Note what a request is about."""

    @abstractmethod
    def perform(self, call: Call) -> Reply:
        """Do what a request asks for."""


def replied(answer: dict[str, object] | bytes | None) -> Reply:
    """Return the reply of a request that was done."""
    if answer is None:
        return Reply(_OK)
    return Reply(_OK, answer if isinstance(answer, bytes) else msgspec.json.encode(answer))


def _decode(body: bytes) -> dict[str, Any]:
    """Return the members of a request; one that is null is not there."""
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
