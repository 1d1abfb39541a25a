"""Clients over TCP's pool and protocol, with a broker in this process and a simulated clock.

`VirtualDriver` replaces the driver of a blocking client. It moves bytes between the client's pool and a real
broker, and moves the clock to the next moment at which anything is due. `faults` are the faults of network and broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import headrace
from headrace.broker.context import CloseConnection, RequestContext
from headrace.clients.config import ClientConfig
from headrace.clients.drivers import client_state
from headrace.clients.engine import Engine, Task
from headrace.clients.network.links import Link
from headrace.clients.network.pool import Pool
from headrace.deferred import Deferred
from headrace.errors import AuthenticationError, ClosedError, ErrorCode, ProtocolError
from headrace.protocol.codec import Message, Structure
from headrace.protocol.frame import decode_request, encode_response
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.types import FileRange

ADDRESS = "virtual:9092"
LONGEST_MS = 400_000
"""A call that takes longer has no deadline."""


@dataclass
class Fault:
    """A fault that begins with the `since`th request, those of handshakes included."""

    kind: str
    since: int = 1
    code: ErrorCode = ErrorCode.NONE
    hits: int = 0
    """The number of requests to which the fault has applied."""


class HangError(AssertionError):
    """A call waits without a reason, or for too long."""


class VirtualDriver:
    """The driver of one client."""

    def __init__(self, broker: headrace.Broker, config: ClientConfig) -> None:
        self.broker = broker
        self.config = config
        self.fault: Fault | None = None
        self.requests = 0
        """The number of requests since the fault was set."""
        self.reported: list[Exception] = []
        self.warnings: list[tuple[int, str]] = []
        self.closed = False
        state = client_state(config)
        self.pool = Pool(
            state,
            config,
            self,
            now_ms=broker.now_ms,
            shuffle=lambda addresses: None,
            on_error=self.reported.append,
            report=self._warn,
        )
        self.engine = Engine(
            state,
            self.pool,
            now_ms=broker.now_ms(),
            request_timeout_ms=config.request_timeout_ms,
            jitter=lambda: 1.0,
        )
        self.engine.trouble.warn = self._warn

    def _warn(self, text: str) -> None:
        self.warnings.append((self.broker.now_ms(), text))

    # What a client uses

    @property
    def lost_connections(self) -> int:
        return self.pool.lost_connections

    def now_ms(self) -> int:
        return self.broker.now_ms()

    def run(self, flow: Any, timeout_ms: int | None = None) -> Any:
        if self.closed:
            raise ClosedError("the client is closed")
        limit_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        self.engine.now_ms = self.broker.now_ms()
        task: Task[Any] = self.engine.spawn(
            flow, timeout_ms=limit_ms, on_done=lambda _: None, on_invoke=lambda _: None
        )
        end_ms = self.broker.now_ms() + LONGEST_MS
        while not task.done:
            if task.invocation is not None:
                self.engine.resume(task, task.invocation.function(*task.invocation.arguments))
                continue
            due_ms = self._serve()
            if self._waits(task) and due_ms is None:
                raise HangError("nothing is due, and the call has not ended")
            if self._waits(task):
                self._advance_to(due_ms or 0)
            if self.broker.now_ms() > end_ms:
                raise HangError(f"the call has not ended after {LONGEST_MS} ms")
        return task.result()

    @staticmethod
    def _waits(task: Task[Any]) -> bool:
        return not task.done and task.invocation is None

    def _advance_to(self, due_ms: int) -> None:
        clock = self.broker.clock
        assert isinstance(clock, headrace.ManualClock)
        clock.advance_to(due_ms)

    @property
    def ended(self) -> bool:
        return self.closed

    @contextmanager
    def enter(self) -> Iterator[Engine]:
        if self.closed:
            raise ClosedError("the client is closed")
        self.engine.now_ms = self.broker.now_ms()
        yield self.engine

    def start_background(self) -> None:
        """Time passes only inside calls."""

    def connect(self) -> None:
        """Nothing that is tested."""

    def close_driver(self) -> None:
        self.closed = True
        self.pool.close()

    def _serve(self) -> int | None:
        """Do everything that is due; return the time of the next event."""
        with self.broker._runtime.condition:
            due = [self.broker._runtime.pump()]
        now_ms = self.broker.now_ms()
        self.pool.expire(now_ms)
        self.engine.advance(now_ms)
        while self.engine.callbacks:
            try:
                self.engine.callbacks.popleft()()
            except Exception as error:  # noqa: BLE001 - as a driver does
                self.reported.append(error)
        due += [self.pool.next_deadline_ms, self.engine.next_deadline_ms]
        return min((at for at in due if at is not None), default=None)

    # The pool's shell

    def strike(self, *kinds: str) -> bool:
        """Whether one of these faults is on, and due."""
        fault = self.fault
        if fault is None or fault.kind not in kinds or self.requests < fault.since:
            return False
        fault.hits += 1
        return True

    def open(self, link: Link) -> None:
        self.requests += 1
        if self.strike("opening raises"):
            raise RuntimeError("opening failed")
        if self.strike("refused"):
            self.pool.refused(link, "Connection refused")
        elif not self.strike("opening is silent"):
            self.pool.connected(link)

    def flush(self, link: Link) -> None:
        if not link.open:
            return
        data = b"".join(map(_bytes, link.connection.take_output()))
        link.connection.written()
        while data and link.lost is None:
            size = 4 + int.from_bytes(data[:4], "big")
            self._request(link, data[4:size])
            data = data[size:]

    def authenticate(self, link: Link) -> None:
        self.requests += 1
        if self.strike("credentials raise"):
            raise RuntimeError("no credentials")
        if self.strike("credentials are refused"):
            self.pool.denied(link, AuthenticationError("wrong password"))

    def close(self, link: Link | None = None) -> None:
        if link is None:
            self.close_driver()
        elif self.strike("closing raises"):
            raise RuntimeError("closing failed")

    # The broker's side

    def _request(self, link: Link, frame: bytes) -> None:
        self.requests += 1
        if self.strike("writing raises"):
            raise RuntimeError("writing failed")
        if self.strike("closed"):
            self.pool.lost(link, "closed the connection")
            return
        if self.strike("silence"):
            return
        header, request = decode_request(memoryview(bytearray(frame)))
        context = RequestContext(
            now_ms=self.broker.now_ms(),
            header=header,
            client_address="virtual",
            listener_host="virtual",
            listener_port=9092,
        )

        def answer(response: Message) -> None:
            if not isinstance(response, ApiVersionsResponse) and self.strike("errors"):
                spoil(response, self.fault.code if self.fault else ErrorCode.NONE)
            payload = b"".join(map(_bytes, encode_response(header, response)))
            if self.strike("garbage"):
                payload = payload[:8] + b"\xff" * len(payload[8:])
            self._receive(link, payload)

        try:
            reply = self._handled(context, request)
        except CloseConnection:
            self.pool.lost(link, "closed the connection")
            return
        if isinstance(reply, Deferred):
            reply.on_done(answer)
        elif reply is not None:
            answer(reply)

    def _handled(self, context: RequestContext, request: Message) -> Any:
        with self.broker._runtime.condition:
            self.broker._runtime.stirred = True
            return self.broker._core.handle(context, request)

    def _receive(self, link: Link, data: bytes) -> None:
        # At the loop's next turn, as bytes come: not while the client hands over a request.
        self.engine.at(self.broker.now_ms(), lambda: self._take_in(link, data))

    def _take_in(self, link: Link, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and link.lost is None:
                buffer = link.connection.get_buffer()
                count = min(len(buffer), len(view))
                buffer[:count] = view[:count]
                view = view[count:]
                link.connection.bytes_received(count)
        except ProtocolError as error:
            self.pool.lost(link, f"lost: {error}")
        except AuthenticationError as error:
            self.pool.denied(link, error)
        except Exception as error:  # noqa: BLE001 - as both drivers do
            self.pool.failed(link, error)
        else:
            self.pool.received(link)


def spoil(part: Any, code: ErrorCode) -> None:
    """Put an error code wherever a response has one."""
    for name in part.__slots__:
        value = getattr(part, name)
        if name == "error_code":
            part.error_code = int(code)
        elif isinstance(value, Structure):
            spoil(value, code)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Structure):
                    spoil(each, code)


def _bytes(payload: Any) -> bytes:
    return payload.read() if isinstance(payload, FileRange) else bytes(payload)


def virtual_clients(monkeypatch: Any, broker: headrace.Broker) -> Callable[[Any], VirtualDriver]:
    """Make blocking clients of `ADDRESS` use such drivers; return a function that returns the driver of a client."""
    for name in ("admin", "producer", "consumer"):
        monkeypatch.setattr(
            f"headrace.clients.{name}.blocking.open_blocking_driver",
            lambda target, config: VirtualDriver(broker, config),
        )
    return lambda client: client._driver
