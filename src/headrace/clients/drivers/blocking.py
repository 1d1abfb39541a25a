"""Runs flows over blocking calls: non-blocking sockets behind one selector, deadlines, reconnects.

One driver belongs to one client and is used by one thread at a time; a lock makes callers from several threads wait
for each other. Nothing happens in the background: bytes move while somebody waits in `run`, `wait` or `poll`.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from headrace.clients.config import ClientConfig, parse_bootstrap
from headrace.clients.connection import Connection
from headrace.clients.flows.effects import ANY_NODE, Call, ClientState, Effect, Flow, Sleep
from headrace.errors import HeadraceError, ProtocolError, TransportError
from headrace.protocol.codec import Message
from headrace.types import Buffer, FileRange

T = TypeVar("T")
Address = tuple[str, int]

ANY_NODE_SHARE: Final = 3
MAX_BUFFERS_PER_WRITE: Final = 512
"""Below every system's IOV_MAX."""


class Reply:
    """The outcome of one call, once there is one."""

    __slots__ = ("deadline", "done", "node", "on_done", "outcome")

    def __init__(
        self, node: int, deadline: float, on_done: Callable[[Reply], None] | None = None
    ) -> None:
        self.node = node
        self.deadline = deadline
        self.done = False
        self.outcome: Message | HeadraceError | None = None
        self.on_done = on_done

    def complete(self, outcome: Message | HeadraceError | None) -> None:
        """Set the outcome."""
        self.outcome = outcome
        self.done = True
        if self.on_done is not None:
            self.on_done(self)


class Link:
    """One socket with its connection."""

    __slots__ = ("address", "connection", "lost", "output", "pending", "sock")

    def __init__(
        self, sock: socket.socket, connection: Connection[Reply], address: Address
    ) -> None:
        self.sock = sock
        self.connection = connection
        self.address = address
        self.lost: TransportError | None = None
        """Why the link is of no more use; None while it is."""
        self.output: deque[memoryview] = deque()
        self.pending: deque[Reply] = deque()
        """Replies that are waited for, oldest first; those done are dropped lazily."""

    def next_deadline(self) -> float | None:
        """Return when the oldest open request runs out of time."""
        while self.pending and self.pending[0].done:
            self.pending.popleft()
        return min((reply.deadline for reply in self.pending if not reply.done), default=None)


class BlockingDriver:
    """Carries out what flows ask for."""

    def __init__(self, state: ClientState, config: ClientConfig) -> None:
        self.state = state
        self._config = config
        self._bootstrap = parse_bootstrap(config.bootstrap_servers)
        self._links: dict[tuple[Address, str], Link] = {}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._closed = False
        self.lost_connections = 0
        """How many connections ended so far, for whatever reason."""

    def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result.

        Args:
            flow: The flow.
            timeout_ms: How long it may take; None is `request.timeout.ms`.

        Raises:
            ApiError: A broker said no.
            TransportError: No broker answered in time.
        """
        limit_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + limit_ms / 1000
        with self._lock:
            if self._links:
                self.poll(0.0)  # notices connections that brokers closed while they were idle
            try:
                effect = next(flow)
                while True:
                    effect = self._step(flow, effect, deadline)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                flow.close()

    def _step(self, flow: Flow[T], effect: Effect, deadline: float) -> Effect:
        if isinstance(effect, Sleep):
            pause = effect.duration_ms / 1000 * self._random.uniform(0.8, 1.2)
            if time.monotonic() + pause >= deadline:
                raise effect.cause
            self._pause(pause)
            return flow.send(None)
        if isinstance(effect, tuple):
            replies = [self.submit(call, deadline=deadline) for call in effect]
            self.wait(replies)
            return flow.send(tuple(reply.outcome for reply in replies))
        assert isinstance(effect, Call), "this driver runs no flows that wait for changes"
        if effect.node == ANY_NODE and effect.timeout_ms is None:
            # Where any broker will do, one that hangs may take only a part of the time.
            share = self._config.request_timeout_ms / 1000 / ANY_NODE_SHARE
            reply = self.submit(effect, deadline=min(deadline, time.monotonic() + share))
        else:
            reply = self.submit(effect, deadline=deadline)
        self.wait([reply])
        if isinstance(reply.outcome, HeadraceError):
            return flow.throw(reply.outcome)
        return flow.send(reply.outcome)

    def submit(
        self,
        call: Call,
        *,
        deadline: float | None = None,
        on_done: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Send a request without waiting for its response.

        Args:
            call: The request and its broker.
            deadline: When to give up, by the monotonic clock; None leaves it to the call's own limit.
            on_done: Called with the reply as soon as it has an outcome, also before this returns.

        Returns:
            The reply, done at once when the broker cannot be reached.
        """
        self._check_open()
        limit_ms = self._config.request_timeout_ms if call.timeout_ms is None else call.timeout_ms
        until = time.monotonic() + limit_ms / 1000
        reply = Reply(call.node, until if deadline is None else min(until, deadline), on_done)
        with self._lock:
            try:
                link = self._link(call, reply.deadline)
            except TransportError as error:
                reply.complete(error)
                return reply
            link.pending.append(reply)
            link.connection.send(call.request, reply, answered=call.answered)
            self._settle(link.connection.take_completed())
            self._flush(link)
        return reply

    def wait(self, replies: Iterable[Reply]) -> None:
        """Return when all replies are done; each is, at its deadline at the latest."""
        for reply in replies:
            while not reply.done:
                self.poll(max(0.0, reply.deadline - time.monotonic()))

    def poll(self, timeout: float) -> None:
        """Move bytes: wait up to `timeout` seconds for the first, then return when there are no more at hand."""
        with self._lock:
            now = time.monotonic()
            deadlines = [
                at for at in map(Link.next_deadline, self._links.values()) if at is not None
            ]
            timeout = min([timeout, *(at - now for at in deadlines)])
            if self._links:
                for key, events in self._selector.select(max(0.0, timeout)):
                    self._serve(key.data, events)
            elif timeout > 0:
                time.sleep(timeout)
            if deadlines:
                self._expire(time.monotonic())

    def connect(self) -> None:
        """Make sure that some broker answers, trying each address once.

        Raises:
            TransportError: None does.
        """
        with self._lock:
            deadline = time.monotonic() + self._config.request_timeout_ms / 1000
            self._any_link("", deadline)

    def close(self) -> None:
        """Close every connection; requests without an outcome fail."""
        with self._lock:
            self._closed = True
            for link in list(self._links.values()):
                self._drop(link, TransportError("the client was closed"))
            self._selector.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the client is closed")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            self.poll(rest)

    def _link(self, call: Call, deadline: float) -> Link:
        if call.node == ANY_NODE:
            return self._any_link(call.channel, deadline)
        broker = self.state.metadata.brokers.get(call.node)
        if broker is None:
            raise TransportError(f"the address of broker {call.node} is not known")
        return self._open((broker.host, broker.port), call.channel, deadline)

    def _any_link(self, channel: str, deadline: float) -> Link:
        ready = [
            link
            for (_, other), link in self._links.items()
            if other == channel and link.connection.ready
        ]
        if ready:
            return min(ready, key=lambda link: len(link.pending))
        known = [(broker.host, broker.port) for broker in self.state.metadata.brokers.values()]
        self._random.shuffle(known)
        failures = []
        for address in dict.fromkeys(known + self._bootstrap):
            try:
                return self._open(address, channel, deadline)
            except TransportError as error:
                failures.append(str(error))
        raise TransportError("; ".join(failures))

    def _open(self, address: Address, channel: str, deadline: float) -> Link:
        """Return the link to an address, connected and shaken hands."""
        link = self._links.get((address, channel))
        if link is None:
            link = self._connect(address, channel, deadline)
        limit = time.monotonic() + self._config.socket_connection_setup_timeout_ms / 1000
        until = min(limit, deadline)
        self._flush(link)
        while not link.connection.ready:
            if link.lost is not None:
                raise link.lost
            if time.monotonic() >= until:
                self._drop(link, link_error(link, "does not answer the handshake"))
                continue
            for key, events in self._selector.select(max(0.0, until - time.monotonic())):
                self._serve(key.data, events)
        return link

    def _connect(self, address: Address, channel: str, deadline: float) -> Link:
        timeout = min(
            self._config.socket_connection_setup_timeout_ms / 1000, deadline - time.monotonic()
        )
        peer = peer_name(address)
        try:
            sock = socket.create_connection(address, timeout=max(0.001, timeout))
        except OSError as error:
            raise TransportError(f"cannot connect to {peer}: {os_reason(error)}") from error
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection: Connection[Reply] = Connection(
            client_id=self._config.client_id,
            peer=peer,
            max_frame_bytes=self._config.receive_message_max_bytes,
        )
        link = Link(sock, connection, address)
        self._links[address, channel] = link
        self._selector.register(sock, selectors.EVENT_READ, link)
        return link

    def _serve(self, link: Link, events: int) -> None:
        if events & selectors.EVENT_READ and link.lost is None:
            self._receive(link)
        if events & selectors.EVENT_WRITE:
            self._flush(link)

    def _receive(self, link: Link) -> None:
        connection = link.connection
        try:
            while True:
                count = link.sock.recv_into(connection.get_buffer())
                if count == 0:
                    self._drop(link, link_error(link, "closed the connection"))
                    return
                connection.bytes_received(count)
        except BlockingIOError:
            self._settle(connection.take_completed())
            self._flush(link)
        except (OSError, ProtocolError) as error:
            text = os_reason(error) if isinstance(error, OSError) else str(error)
            self._drop(link, link_error(link, f"lost: {text}"))

    def _flush(self, link: Link) -> None:
        """Write as much as the socket takes; the rest goes when the selector says so."""
        if link.lost is not None:
            return
        output = link.output
        output.extend(map(_view, link.connection.take_output()))
        try:
            while output:
                sent = link.sock.sendmsg(_head(output))
                while sent:
                    first = output.popleft()
                    if sent < len(first):
                        output.appendleft(first[sent:])
                        break
                    sent -= len(first)
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(link, link_error(link, f"lost: {os_reason(error)}"))
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if output else 0)
        if self._selector.get_key(link.sock).events != wanted:
            self._selector.modify(link.sock, wanted, link)

    def _expire(self, now: float) -> None:
        for link in list(self._links.values()):
            deadline = link.next_deadline()
            if deadline is not None and deadline <= now:
                # Answers come in order: behind one that is missing no other can be believed to arrive.
                self._drop(link, link_error(link, "did not answer in time"))

    def _drop(self, link: Link, error: TransportError) -> None:
        link.lost = error
        self.lost_connections += 1
        self._links = {key: other for key, other in self._links.items() if other is not link}
        self._selector.unregister(link.sock)
        link.sock.close()
        self._settle(link.connection.take_completed())
        self._settle(link.connection.abandon(error))

    @staticmethod
    def _settle(completed: Iterable[tuple[Reply, Message | HeadraceError | None]]) -> None:
        for reply, outcome in completed:
            reply.complete(outcome)


def _view(payload: Buffer | FileRange) -> memoryview:
    assert not isinstance(payload, FileRange), "a client sends bytes, never ranges of files"
    return memoryview(payload)


def _head(output: deque[memoryview]) -> list[memoryview]:
    if len(output) <= MAX_BUFFERS_PER_WRITE:
        return list(output)
    return [output[index] for index in range(MAX_BUFFERS_PER_WRITE)]


def peer_name(address: Address) -> str:
    """Return HOST:PORT, an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def os_reason(error: OSError) -> str:
    """Return why a system call failed, in words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error) or type(error).__name__


def link_error(link: Link, what: str) -> TransportError:
    """Return the error of one connection."""
    return TransportError(f"{peer_name(link.address)} {what}")
