"""The simulated network: the connections between clients and brokers.

Bytes of one connection arrive in order; bytes of different connections may overtake each other. A connection may stall,
or break with requests and responses in flight. A request on a broken connection may arrive long after the client has
sent it again on another connection.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.broker.broker import Broker
from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.session import Session
from headrace.clients.network.links import Link
from headrace.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader, decode_request, encode_response
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.types import FileRange, Payload

if TYPE_CHECKING:
    from tests.simulation.clients import Client, Process

ADDRESS = ("127.0.0.1", 9092)
OLD_PROTOCOL: dict[int, int] = {
    # The versions that the broker offers to a client of transaction version 1.
    ApiKey.PRODUCE: 11,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
}
DECIDING = frozenset({ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT})
"""Requests that transaction version 1 cannot distinguish from those of a later transaction with the same epoch."""


@dataclass
class NetworkConditions:
    """The delays of the network."""

    delay_ms: int = 3
    spike: float = 0.0
    """The probability that bytes take a hundred times as long."""

    def delay(self, chance: random.Random) -> int:
        if self.spike and chance.random() < self.spike:
            return chance.randint(0, self.longest_ms)
        return chance.randint(0, self.delay_ms)

    @property
    def longest_ms(self) -> int:
        return 100 * self.delay_ms if self.spike else self.delay_ms


class Frame(NamedTuple):
    """One request on the network."""

    client: Client | None
    content: bytes

    @property
    def api_key(self) -> int:
        return int.from_bytes(self.content[:2], "big")


class Clock(Protocol):
    """The time of a run, and its events."""

    tracing: bool

    @property
    def schedule(self) -> Events: ...

    @property
    def now_ms(self) -> int: ...

    def trace(self, line: str) -> None: ...


class Events(Protocol):
    """The future events of a run."""

    def at(self, when_ms: int, what: Callable[[], object], /) -> None: ...


class Host(Protocol):
    """A broker to which processes connect. `broker` is None while it is down; `life` counts its starts."""

    @property
    def broker(self) -> Broker | None: ...

    @property
    def life(self) -> int: ...

    def step(self, what: Callable[[], object], /) -> None: ...


class Network:
    """All connections of the simulation."""

    def __init__(
        self,
        machine: Clock,
        hosts: Mapping[tuple[str, int], Host],
        chance: random.Random,
        conditions: NetworkConditions,
    ) -> None:
        self.machine = machine
        self.hosts = hosts
        """The brokers by their addresses."""
        self.chance = chance
        self.conditions = conditions
        self.wires: dict[Wire, None] = {}
        self.processes: list[Process] = []
        self.on_request: Callable[[Frame, Message], None] = lambda _frame, _request: None
        self.on_decided: Callable[[Message], None] = lambda _request: None
        """Called when the broker has handled a request. Its response may have to wait."""
        self.on_response: Callable[[Frame, Message, Message], None] = lambda *_: None
        self.requests = 0
        self.address = ADDRESS
        """The address of the broker that received the last request or sent the last response."""

    def delay(self) -> int:
        return self.conditions.delay(self.chance)

    def broker_fell(self, host: Host) -> None:
        """End every connection of a broker. The clients notice the end now, or some time later."""
        for wire in list(self.wires):
            if wire.host is host:
                wire.break_off()


class Wire:
    """One connection, with the bytes in flight of both directions."""

    def __init__(
        self,
        network: Network,
        client: Client | None,
        link: Link | None,
        address: tuple[str, int],
    ) -> None:
        self._network = network
        self._machine = network.machine
        self._address = address
        self.host = network.hosts[address]
        self.client = client
        self.link = link
        self.client_is_there = True
        self.broker_is_there = False
        self.broken = False
        """Whether the client receives nothing more."""
        self.stalled_until_ms = 0
        self._life = 0
        self._up: deque[tuple[int, Frame]] = deque()
        self._down: deque[tuple[int, bytes]] = deque()
        self._last_up_ms = self._last_down_ms = 0
        self._open: list[Deferred[Any]] = []
        """Responses that are not ready yet."""
        self._noticed = False
        """Whether the broker has noticed the end of the connection."""
        self._session = Session(is_local=True)
        self._session.on_idle = lambda: self._after(0, self._deliver_up)
        self._slots: deque[list[Any]] = deque()
        """The responses in the order of the requests; None for a response that is not ready."""
        network.wires[self] = None

    # Connecting

    def connect(self) -> None:
        machine = self._machine
        self._after(self._network.delay(), self._reached)
        self._last_up_ms = machine.now_ms

    def _reached(self) -> None:
        if self.host.broker is None:
            self._after(self._network.delay(), lambda: self._notify_lost("refused"))
            return
        self.broker_is_there = True
        self._life = self.host.life
        self._after(self._network.delay(), self._connected)

    def _connected(self) -> None:
        client, link = self.client, self.link
        if client is not None and link is not None and self.client_is_there:
            client.run(lambda: client.pool.connected(link))

    def _after(self, delay_ms: int, what: Callable[[], None]) -> None:
        self._machine.schedule.at(self._machine.now_ms + delay_ms, what)

    # To the broker

    def send(self, frame: Frame, extra_ms: int = 0) -> None:
        now_ms = self._machine.now_ms
        self._last_up_ms = max(self._last_up_ms, now_ms + self._network.delay() + extra_ms)
        self._up.append((self._last_up_ms, frame))
        self._machine.schedule.at(self._last_up_ms, self._deliver_up)

    def _deliver_up(self) -> None:
        now_ms = self._machine.now_ms
        if self.stalled_until_ms > now_ms:
            self._machine.schedule.at(self.stalled_until_ms, self._deliver_up)
            return
        while self._up and self._up[0][0] <= now_ms:
            if self._session.busy and self.host.life == self._life:
                return  # until the stall has ended
            frame = self._up.popleft()[1]
            if not self.broker_is_there or self.host.life != self._life:
                continue
            if self._is_undefended(frame):
                continue
            self.host.step(partial(self._handle, frame))

    def _is_undefended(self, frame: Frame) -> bool:
        """Return whether a late request would count for a later transaction in transaction version 1."""
        client = self.client
        given_up = client is not None and not client.speaks_v2 and not self.client_is_there
        return given_up and frame.api_key in DECIDING

    def _handle(self, frame: Frame) -> None:
        machine = self._machine
        broker = self.host.broker
        assert broker is not None
        buffer = bytearray(frame.content)
        header, request = decode_request(memoryview(buffer))
        self._network.requests += 1
        self._network.address = self._address
        self._network.on_request(frame, request)
        context = RequestContext(
            now_ms=machine.now_ms,
            header=header,
            client_address="10.0.0.1:50000",
            listener_host=self._address[0],
            listener_port=self._address[1],
            session=self._session,
        )
        slot: list[Any] = [None]
        try:
            reply = broker.handle(context, request)
        except CloseConnection:
            self.break_off()
            return
        if reply is None:
            return
        self._network.on_decided(request)
        self._slots.append(slot)
        answered = partial(self._answered, slot, header, frame, request)
        if isinstance(reply, Deferred):
            reply.on_done(answered)
            self._open = [each for each in (*self._open, reply) if not each.done]
            if self._noticed:
                self._cancel_open()
        else:
            answered(reply)
        if not self._session.busy:  # otherwise a request that runs in steps still reads the buffer
            buffer[:] = b"\xaa" * len(buffer)

    def _answered(
        self, slot: list[Any], header: RequestHeader, frame: Frame, request: Message, reply: Any
    ) -> None:
        if self.host.broker is None or self.host.life != self._life:
            return
        if isinstance(reply, CloseConnection):
            self.break_off()
            return
        if isinstance(reply, ApiVersionsResponse) and frame.client is not None:
            reply = frame.client.offered(reply)
        slot[0] = b"".join(map(bytes_of, encode_response(header, reply)))
        self._network.address = self._address
        self._network.on_response(frame, request, reply)
        while self._slots and self._slots[0][0] is not None:
            content = self._slots.popleft()[0]
            if self.client_is_there and not self.broken:
                now_ms = self._machine.now_ms
                self._last_down_ms = max(self._last_down_ms, now_ms + self._network.delay())
                self._down.append((self._last_down_ms, content))
                self._machine.schedule.at(self._last_down_ms, self._deliver_down)

    # To the client

    def _deliver_down(self) -> None:
        now_ms = self._machine.now_ms
        if self.stalled_until_ms > now_ms:
            self._machine.schedule.at(self.stalled_until_ms, self._deliver_down)
            return
        while self._down and self._down[0][0] <= now_ms:
            content = self._down.popleft()[1]
            client, link = self.client, self.link
            if client is not None and link is not None and self.client_is_there:
                client.run(partial(client.receive, link, content))

    # Ends

    def break_off(self) -> None:
        """Break the connection. Responses in flight are lost; requests in flight may still arrive, late."""
        self.broken = True
        if self.host.broker is None:
            self.broker_is_there = False
        self._down.clear()
        self._after(0, self._notice_end)
        late_ms = self._network.chance.choice([0, 0, 5, 100])
        self._after(late_ms, lambda: self._notify_lost("lost"))

    def _notify_lost(self, why: str) -> None:
        self._network.wires.pop(self, None)
        client, link = self.client, self.link
        if client is None or link is None or not self.client_is_there:
            return
        self.client_is_there = False

        def notify() -> None:
            if why == "refused":
                client.pool.refused(link, "connection refused")
            else:
                client.pool.lost(link, "lost the connection")

        client.run(notify)

    def close(self) -> None:
        """Close the connection, as the client does."""
        self.client_is_there = False
        self._network.wires.pop(self, None)
        self._after(0, self._notice_end)

    def _notice_end(self) -> None:
        """End the broker's side, and cancel the pending responses, which no client will read."""
        self._noticed = True
        if self.host.broker is not None and self.host.life == self._life:
            self._cancel_open()

    def _cancel_open(self) -> None:
        waiting, self._open = self._open, []
        for reply in waiting:
            reply.cancel()


def bytes_of(payload: Payload) -> bytes:
    return payload.read() if isinstance(payload, FileRange) else bytes(payload)
