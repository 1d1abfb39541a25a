"""One client connection. It reads requests and writes responses in the order of the requests, within limits.

A wake-up of the event loop delivers bytes. The connection handles all complete requests in them, then writes their
responses with one call. If a response is not ready, a slot in a queue stands for it. Later responses wait behind it.

The connection stops reading in four cases: it has too many requests in flight; the client does not read its responses;
the memory budget is used up; the connection is muted because its client is above a quota.

The connection knows framing, order and limits, but not Kafka's protocol: `Hub.handle` turns a frame into payloads.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Final, cast

from headrace.broker.session import Session
from headrace.config.listeners import ANY_PLAINTEXT, Listener
from headrace.server.connections.framing import BadFrameError, ReceiveBuffer
from headrace.server.connections.outgoing import SocketWriter, TruncatedFileError
from headrace.server.connections.socket_options import set_socket_options
from headrace.server.connections.stalls import stalled_authentication, stalled_frame, stalled_write
from headrace.server.hub_interface import CloseConnectionError, Hub, Slot
from headrace.types import Payload

_REQUESTS_PER_TURN: Final = 256
"""The greatest number of requests that one connection handles in one iteration of the event loop."""
_TURN_NS: Final = 10_000_000
"""The time after which a connection handles no further request in the same iteration, in nanoseconds."""
_CLOSE_TIMEOUT_MS: Final = 5_000
"""The time that a closing connection waits for its client to read the last responses, in milliseconds."""
_LOST: Final = (ConnectionError, BrokenPipeError, TimeoutError)
"""The errors of a write that only say that the client has gone. They are not logged."""


class Connection(asyncio.BufferedProtocol):
    """The asyncio protocol of one accepted socket."""

    def __init__(
        self,
        hub: Hub[Connection],
        loop: asyncio.AbstractEventLoop,
        listener: Listener = ANY_PLAINTEXT,
    ) -> None:
        self._hub = hub
        self._loop = loop
        self._listener = listener
        self._limits = hub.limits
        self._receive = ReceiveBuffer(hub.limits, hub.budget, self)
        self._slots: deque[Slot[Any]] = deque()
        self._ready: list[Payload] = []
        self._ready_bytes = 0
        self._has_output = False
        self._paused = False  # whether the transport does not read
        self._continuing = False  # whether `_continue` is scheduled
        self._stopped = False  # whether the server drains: the connection reads no further request
        self._muted_until_ms = 0
        self._unmute: asyncio.TimerHandle | None = (
            None  # the timer that ends the muting; None if the connection is not muted
        )
        self._closing_since_ms = -1  # when `close` was called; -1 before
        self._peer_closed = False
        self._received_ms = 0  # the time of the last byte from the client
        self._frame_began_ms = (
            -1
        )  # the time of the first byte of an incomplete request; -1 if there is none
        self._active_ms = 0  # the time of the last response
        self._made_ms = 0  # the time at which the connection was accepted
        self._in_flight_limit = hub.limits.max_requests_in_flight
        self._written_ms = (
            0  # the last time at which no bytes were queued, or the client had taken some
        )
        self._written_bytes = 0  # how many bytes the client had taken at the last check
        self._transport: asyncio.Transport
        self._writer: SocketWriter
        self.lost = False  # whether the connection is closed or was refused
        self.client = "?"  # the address and port of the client, for log events; "?" until the connection is made
        self.client_address = ""  # the address of the client without its port
        self.session: Session  # its listener and its authenticated principal
        self.local_host = ""  # the local address of the socket
        self.local_port = 0  # the local port of the socket

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over an accepted socket."""
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
            set_socket_options(sock, self._limits)
        except OSError as error:  # no descriptor is left, or the client has disconnected
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
        """Return the free space of the receive buffer."""
        return self._receive.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the requests in the bytes that the event loop has received."""
        self._hub.begin()
        self._received_ms = self._hub.now_ms
        self._receive.received(nbytes)
        self._process()
        self._hub.end()

    def eof_received(self) -> bool:
        """Close the connection, even with requests in flight: the client sends no more. Kafka does the same."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Release everything: the socket is closed."""
        if self.lost:
            return
        self.lost = True
        if self._unmute is not None:
            self._unmute.cancel()
        self._writer.close()
        self.session.end(self._receive.close)  # a request may still use records in the buffer
        self._ready.clear()
        self._cancel_slots()
        self._hub.closed(self)

    def _session_changed(self) -> None:
        """Set the limits of the connection. Until the client has authenticated they are small."""
        session, limits = self.session, self._limits
        known = session.authenticated
        self._in_flight_limit = limits.max_requests_in_flight if known else 1
        self._receive.bound(
            tokens=session.raw_tokens, most=0 if known else limits.max_unauthenticated_bytes
        )

    # Requests

    def _process(self) -> None:
        """Handle the complete requests in the buffer, send the responses that are ready, and read on or pause."""
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
        """Handle the requests of one iteration. Return whether no complete request is left."""
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
        """Receive bytes that a lower layer has buffered. Return whether there were any."""
        return False

    def _accept(self, answer: Sequence[Payload] | Slot[Any] | None) -> None:
        """Add a response, or its slot, to the order of responses."""
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
        """Make space for more bytes and read on: no complete request is left."""
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
            # The client was not silent while the connection was paused: its timers start again.
            self._received_ms = now_ms = self._hub.now_ms
            if self._frame_began_ms >= 0:
                self._frame_began_ms = now_ms
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _continue_soon(self) -> None:
        """Continue with `_process` in the next iteration of the event loop."""
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
        """Read nothing and handle no request until `until_ms`, in the time of the hub. Responses are still sent."""
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
        """Continue: the memory budget has space again."""
        self._continue_soon()

    # Responses

    def slot_filled(self) -> None:
        """Add the responses that are next in order to the output: a slot was filled."""
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
        """Write the responses that are ready."""
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

    # The end

    def close(self, reason: str, *, quietly: bool = False) -> None:
        """Handle no further request, send the responses that are ready, then close.

        Args:
            reason: The reason, for the log event.
            quietly: Whether to log no event.
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
        """Cancel the responses that are not ready."""
        slots, self._slots = self._slots, deque()
        for slot in slots:
            slot.cancel()

    def _shut(self) -> None:
        """Close both descriptors. Bytes that the kernel has accepted still reach the client."""
        self._transport.close()

    def _write_failed(self, error: OSError) -> None:
        if isinstance(error, TruncatedFileError) or not isinstance(error, _LOST):
            self._hub.client_log.error(
                "connection_write_failed", client=self.client, error=str(error)
            )
        self.abort()

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight: every request has its response, and the socket has taken every response."""
        return self.lost or not (self._slots or self._ready or self._writer.queued_bytes)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of responses that the socket has not taken yet."""
        return 0 if self.lost else self._writer.queued_bytes

    def stop_reading(self) -> None:
        """Read no further request. Responses in flight are still sent."""
        self._stopped = True
        if not self.lost:
            self._pause()

    @property
    def deaf(self) -> bool:
        """Whether the connection is paused while responses are pending. Its end goes unnoticed then."""
        return (
            self._paused
            and bool(self._slots)
            and not self.lost
            and not self._transport.is_closing()
        )

    def fileno(self) -> int:
        """Return the descriptor of the socket. The connection must not be `lost`."""
        return self._writer.fileno()

    def peer_closed(self) -> None:
        """Cancel the responses that are not ready: the client has closed its end of the connection.

        The connection still handles the requests that it has not read yet, because a producer with acks=0 closes
        without waiting for responses. Then the connection closes.
        """
        if not self._peer_closed:
            self._peer_closed = True
            self._cancel_slots()
            self._continue_soon()

    def abort(self) -> None:
        """Close at once. Responses that are not sent are lost."""
        if not self.lost:
            self._closing_since_ms = self._hub.now_ms
            self._cancel_slots()
            self._transport.abort()

    def check(self, now_ms: int) -> None:
        """Close the connection after a time-out, and free spare memory. The hub calls this once a second."""
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
        return stalled_write(
            self._limits,
            self._writer.queued_bytes,
            now_ms - self._written_ms,
            others_wait=self._receive.holds_extra and self._hub.budget.contended,
        )

    def _stalled_authentication(self, now_ms: int) -> str:
        if self.session.authenticated or self._slots:
            return ""
        return stalled_authentication(self._limits, now_ms - self._made_ms)

    def _stalled_frame(self, now_ms: int) -> str:
        if self._paused or self._frame_began_ms < 0:
            return ""
        return stalled_frame(
            self._limits,
            self._receive.pending,
            now_ms - self._received_ms,
            now_ms - self._frame_began_ms,
        )
