"""One client connection: requests in, responses out in the order of the requests, everything bounded.

A wake-up of the event loop brings bytes; all whole requests in them are handled, then their responses go out in one
write. A response that is not ready keeps its place in a queue of slots, and so do the ready ones behind it. Reading
stops while the connection has too many requests in flight, while the client does not take its responses, while
the memory budget is used up, and while the connection is muted because its client went over a quota.

The connection knows framing, order and limits, and nothing of Kafka: `Hub.handle` turns a frame into payloads.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final, Protocol, cast

from headrace.broker.session import Session
from headrace.config.listeners import ANY_PLAINTEXT, Listener
from headrace.ports import Journal
from headrace.server.budget import MemoryBudget
from headrace.server.framing import BadFrameError, ReceiveBuffer
from headrace.server.limits import ServerLimits
from headrace.server.outgoing import SocketWriter, TruncatedFileError
from headrace.types import Payload

_REQUESTS_PER_TURN: Final = 256
_TURN_NS: Final = 10_000_000
"""After so long no further request is handled in the same turn of the event loop: requests cost up to some 15 ms."""
_CLOSE_TIMEOUT_MS: Final = 5_000
_LOST: Final = (ConnectionError, BrokenPipeError, TimeoutError)


class CloseConnectionError(Exception):
    """A request after which the connection has to be closed; the message says why."""


class Slot:
    """The place of one response in a connection's order; `fill` it exactly once."""

    __slots__ = ("connection", "payloads")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.payloads: Sequence[Payload] | None = None

    def fill(self, payloads: Sequence[Payload]) -> None:
        """Put the response in; it goes out when all earlier ones have."""
        self.payloads = payloads
        self.connection.slot_filled()

    def cancel(self) -> None:
        """Give the response up: the connection will not send it. Does nothing if the slot has been filled."""


class Hub(Protocol):
    """The hub: the part of the server that all connections share."""

    limits: ServerLimits
    budget: MemoryBudget
    client_log: Journal
    """Rate-limited: for events that clients can cause at will."""
    now_ms: int
    """The time at which this wake-up began."""

    def begin(self) -> None:
        """A wake-up begins: read the clock into `now_ms`."""

    def handle(self, connection: Connection, frame: memoryview) -> Sequence[Payload] | Slot | None:
        """Handle one request: its response, or a slot that will be filled, or None for no response.

        Raises:
            CloseConnectionError: The client has to go.
        """

    def end(self) -> None:
        """The wake-up ends: flush other connections, start a sync, set the timer."""

    def has_output(self, connection: Connection) -> None:
        """Have `connection.flush` called at the end of this wake-up."""

    def opened(self, connection: Connection) -> str | None:
        """Note a new connection; returns why it is refused, or None."""

    def closed(self, connection: Connection) -> None:
        """Remove a connection that is closed."""


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, listener: Listener = ANY_PLAINTEXT
    ) -> None:
        self._hub = hub
        self._loop = loop
        self._listener = listener
        self._limits = hub.limits
        self._receive = ReceiveBuffer(hub.limits, hub.budget, self)
        self._slots: deque[Slot] = deque()
        self._ready: list[Payload] = []
        self._ready_bytes = 0
        self._has_output = False
        self._paused = False
        self._continuing = False
        self._stopped = False
        self._muted_until_ms = 0
        self._unmute: asyncio.TimerHandle | None = None
        self._closing_since_ms = -1
        self._peer_closed = False
        self._received_ms = 0
        self._frame_began_ms = -1
        self._active_ms = 0
        self._made_ms = 0
        self._in_flight_limit = hub.limits.max_requests_in_flight
        self._written_ms = 0
        self._written_bytes = 0
        self._transport: asyncio.Transport
        self._writer: SocketWriter
        self.lost = False
        self.client = "?"
        self.client_address = ""
        self.session: Session
        self.local_host = ""
        self.local_port = 0

    # -- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a freshly accepted socket."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        local = transport.get_extra_info("sockname") or ("?", 0)
        self.client_address, self.client = peer[0], f"{peer[0]}:{peer[1]}"
        self.local_host, self.local_port = local[0], local[1]
        self.session = Session(
            listener=self._listener.name,
            protocol=self._listener.protocol,
            client_host=self.client_address,
        )
        self.session.on_change = self._session_changed
        self.session.on_idle = self._continue_soon
        self._session_changed()
        self._hub.begin()
        self._received_ms = self._active_ms = self._written_ms = self._hub.now_ms
        self._made_ms = self._hub.now_ms
        try:
            accepted = transport.get_extra_info("socket")
            sock = socket.socket(fileno=os.dup(accepted.fileno()))
            sock.settimeout(0)
            self._writer = self._make_writer(sock)
            _set_options(sock, self._limits)
        except OSError as error:  # no descriptor left, or the client has gone already
            self._refuse_new(f"{error}")
            return
        reason = self._hub.opened(self)
        if reason is not None:
            self._writer.close()
            self._refuse_new(reason)

    def _make_writer(self, sock: socket.socket) -> SocketWriter:
        return SocketWriter(self._loop, sock, self._drained, self._write_failed)

    def _refuse_new(self, reason: str) -> None:
        self.lost = True
        self._receive.close()
        self._hub.client_log.warning("connection_refused", client=self.client, reason=reason)
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next bytes go."""
        return self._receive.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the received bytes from the buffer."""
        self._hub.begin()
        self._received_ms = self._hub.now_ms
        self._receive.received(nbytes)
        self._process()
        self._hub.end()

    def eof_received(self) -> bool:
        """Close the connection, as Kafka does, whatever is in flight: the client sends no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The socket is gone."""
        if self.lost:
            return
        self.lost = True
        if self._unmute is not None:
            self._unmute.cancel()
        self._writer.close()
        self.session.end(self._receive.close)  # records of a request may still be in the buffer
        self._ready.clear()
        self._cancel_slots()
        self._hub.closed(self)

    def _session_changed(self) -> None:
        """Give a client no more room than it needs until it has authenticated."""
        session, limits = self.session, self._limits
        known = session.authenticated
        self._in_flight_limit = limits.max_requests_in_flight if known else 1
        self._receive.bound(
            tokens=session.raw_tokens, most=0 if known else limits.max_unauthenticated_bytes
        )

    # -- requests

    def _process(self) -> None:
        """Handle the whole requests at hand, send what is ready, and decide whether to read on."""
        try:
            complete = self._handle_requests()
        except (BadFrameError, CloseConnectionError) as error:
            self.close(str(error))
            return
        if self._ready:
            self.flush()
        if self.lost or self._closing_since_ms >= 0:
            return
        if complete:
            self._await_bytes()
        else:
            self._pause()
            if not self._congested():
                self._continue_soon()

    def _handle_requests(self) -> bool:
        """Handle the requests of one turn; return whether no whole request is left."""
        turn_ends_ns = perf_counter_ns() + _TURN_NS
        for _ in range(_REQUESTS_PER_TURN):
            if self._congested():
                return False
            frame = self._receive.next_frame()
            if frame is None:
                if self._receive_more():
                    continue
                return True
            self._accept(self._hub.handle(self, frame))
            if perf_counter_ns() > turn_ends_ns:
                return False
        return False

    def _receive_more(self) -> bool:
        """Receive what a layer below still holds; returns whether there was anything."""
        return False

    def _accept(self, answer: Sequence[Payload] | Slot | None) -> None:
        """Put a response, or its slot, into the order."""
        if answer is None:
            return
        if self._peer_closed:
            if isinstance(answer, Slot):
                answer.cancel()
        elif isinstance(answer, Slot):
            self._slots.append(answer)
        elif self._slots:
            slot = Slot(self)
            slot.payloads = answer
            self._slots.append(slot)
        else:
            self._add_ready(answer)

    def _add_ready(self, payloads: Sequence[Payload]) -> None:
        self._ready += payloads
        for payload in payloads:
            self._ready_bytes += len(payload)
        if self._ready_bytes > self._limits.max_queued_bytes:
            self.flush()

    def _congested(self) -> bool:
        return (
            len(self._slots) >= self._in_flight_limit
            or self._writer.queued_bytes > self._limits.max_queued_bytes
            or self._closing_since_ms >= 0
            or self._unmute is not None
            or self._stopped
            or self.session.busy
            or self.lost
        )

    def _await_bytes(self) -> None:
        """No whole request is left: make room for more bytes and read."""
        if not self._receive.pending:
            self._frame_began_ms = -1
        elif self._frame_began_ms < 0:
            self._frame_began_ms = self._received_ms
        if self._receive.make_room():
            self._read_on()
        else:
            self._pause()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            if not self._transport.is_closing():  # uvloop raises then
                self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._paused:
            self._paused = False
            # The time that we did not listen does not count as the client's silence.
            self._received_ms = now_ms = self._hub.now_ms
            if self._frame_began_ms >= 0:
                self._frame_began_ms = now_ms
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _continue_soon(self) -> None:
        """Go on with `_process` in the next iteration of the loop."""
        if not self._continuing and not self.lost:
            self._continuing = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._continuing = False
        if self.lost or self._closing_since_ms >= 0:
            return
        self._hub.begin()
        self._process()
        self._hub.end()

    def mute(self, until_ms: int) -> None:
        """Read nothing and handle no further request until then, in the time of the hub; answers still go out."""
        now_ms = self._hub.now_ms
        if self.lost or until_ms <= max(now_ms, self._muted_until_ms):
            return
        if self._unmute is not None:
            self._unmute.cancel()
        self._muted_until_ms = until_ms
        self._unmute = self._loop.call_later((until_ms - now_ms) / 1000, self._end_mute)
        self._pause()

    def _end_mute(self) -> None:
        self._unmute = None
        self._continue_soon()

    def memory_available(self) -> None:
        """The memory budget has room again."""
        self._continue_soon()

    # -- responses

    def slot_filled(self) -> None:
        """A response became ready; take out those that are next in order."""
        if self.lost:
            return
        slots = self._slots
        while slots:
            payloads = slots[0].payloads
            if payloads is None:
                break
            slots.popleft()
            self._add_ready(payloads)
        if self._ready and not self._has_output:
            self._has_output = True
            self._hub.has_output(self)

    def flush(self) -> None:
        """Write what is ready."""
        self._has_output = False
        if self.lost:
            return
        ready, self._ready = self._ready, []
        self._ready_bytes = 0
        self._active_ms = self._hub.now_ms
        if not self._writer.queued_bytes:
            self._written_ms = self._active_ms
        self._writer.send(ready)
        if self._paused:
            self._continue_if_room()

    def _drained(self) -> None:
        if self._closing_since_ms >= 0:
            if not self._writer.queued_bytes:
                self._shut()
        elif self._paused:
            self._continue_if_room()

    def _continue_if_room(self) -> None:
        half = self._limits.max_queued_bytes // 2
        if not self._congested() and self._writer.queued_bytes <= half:
            self._continue_soon()

    # -- the end

    def close(self, reason: str, *, quietly: bool = False) -> None:
        """Handle no further request, send what is ready, then close.

        Args:
            reason: for the log.
            quietly: do not log.
        """
        if self.lost or self._closing_since_ms >= 0:
            return
        if not quietly:
            self._hub.client_log.warning("connection_closed", client=self.client, reason=reason)
        if self._ready:
            self.flush()
        self._closing_since_ms = self._hub.now_ms
        self._cancel_slots()
        self._pause()
        if not self._writer.queued_bytes:
            self._shut()

    def _cancel_slots(self) -> None:
        """Give up the responses that are not ready."""
        slots, self._slots = self._slots, deque()
        for slot in slots:
            slot.cancel()

    def _shut(self) -> None:
        """Close both descriptors; what the kernel has taken still reaches the client."""
        self._transport.close()

    def _write_failed(self, error: OSError) -> None:
        if isinstance(error, TruncatedFileError) or not isinstance(error, _LOST):
            self._hub.client_log.error(
                "connection_write_failed", client=self.client, error=str(error)
            )
        self.abort()

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight: no request without a response, no response that the client has not taken."""
        return self.lost or not (self._slots or self._ready or self._writer.queued_bytes)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that the socket has not taken."""
        return 0 if self.lost else self._writer.queued_bytes

    def stop_reading(self) -> None:
        """Take no further request. Responses in flight are still sent."""
        self._stopped = True
        if not self.lost:
            self._pause()

    @property
    def deaf(self) -> bool:
        """Whether nothing is read from the connection while responses wait, so that its end would go unnoticed."""
        return (
            self._paused
            and bool(self._slots)
            and not self.lost
            and not self._transport.is_closing()
        )

    def fileno(self) -> int:
        """Return the descriptor of the socket; the connection must not be `lost`."""
        return self._writer.fileno()

    def peer_closed(self) -> None:
        """The client has closed its end, though requests of it may not have been read yet.

        Its responses that are not ready are given up. The requests that are left are still carried out, as those of a
        producer that waits for no answer have to be; then the connection closes.
        """
        if not self._peer_closed:
            self._peer_closed = True
            self._cancel_slots()
            self._continue_soon()

    def abort(self) -> None:
        """Close at once, whatever waits to be sent."""
        if not self.lost:
            self._closing_since_ms = self._hub.now_ms
            self._cancel_slots()
            self._transport.abort()

    def check(self, now_ms: int) -> None:
        """Close the connection if it has run into a time-out, and give spare memory back. Called once a second."""
        if self.lost:
            return
        if not self.session.busy:
            self._receive.shrink()
        if self._closing_since_ms >= 0:
            if now_ms - self._closing_since_ms > _CLOSE_TIMEOUT_MS:
                self._transport.abort()
            return
        reason = (
            self._stalled_write(now_ms)
            or self._stalled_frame(now_ms)
            or self._stalled_authentication(now_ms)
        )
        if reason:
            self._hub.client_log.warning("connection_closed", client=self.client, reason=reason)
            self.abort()
        elif (
            self.settled
            and self._unmute is None
            and now_ms - max(self._active_ms, self._received_ms) > self._limits.idle_timeout_ms
        ):
            self.abort()

    def _stalled_write(self, now_ms: int) -> str:
        if not self._writer.queued_bytes or self._writer.sent_bytes != self._written_bytes:
            self._written_bytes = self._writer.sent_bytes
            self._written_ms = now_ms
            return ""
        timeout_ms = self._limits.write_timeout_ms
        if self._receive.holds_extra and self._hub.budget.contended:
            timeout_ms = min(
                timeout_ms, self._limits.frame_timeout_ms
            )  # others wait for its memory
        if now_ms - self._written_ms <= timeout_ms:
            return ""
        queued = self._writer.queued_bytes
        return f"the client took none of {queued} waiting bytes in {timeout_ms / 1000:g} s"

    def _stalled_authentication(self, now_ms: int) -> str:
        limit_ms = self._limits.authentication_timeout_ms
        if self.session.authenticated or self._slots or now_ms - self._made_ms <= limit_ms:
            return ""
        return f"the client has not authenticated in {limit_ms / 1000:g} s"

    def _stalled_frame(self, now_ms: int) -> str:
        if self._paused or self._frame_began_ms < 0:
            return ""
        limits = self._limits
        lasted_ms = now_ms - self._frame_began_ms
        due = limits.min_bytes_per_second * (lasted_ms - limits.frame_timeout_ms) // 1000
        if now_ms - self._received_ms > limits.frame_timeout_ms or self._receive.pending < due:
            return f"a request of which {self._receive.pending} bytes came in {lasted_ms / 1000:g} s, and not its rest"
        return ""


def _set_options(sock: socket.socket, limits: ServerLimits) -> None:
    """Send small answers at once, and notice a client whose machine or network has gone without a word."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", limits.keepalive_idle_s),
        ("TCP_KEEPINTVL", limits.keepalive_interval_s),
        ("TCP_KEEPCNT", limits.keepalive_probes),
    ):
        if hasattr(socket, name):  # some systems have them by other names, and all have a default
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
