"""Connections that end while responses are pending: the responses are cancelled, however the connection ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence

import pytest

from headrace.server.connections.connection import Connection
from headrace.server.connections.hangup import notice_closed
from headrace.server.hub_interface import Slot
from headrace.server.limits import ServerLimits
from headrace.types import Payload
from tests.unit.server.fakes import FakeHub, framed, serving
from tests.unit.server.loops import on_loop

IN_FLIGHT = 8


class CountedSlot(Slot):
    """A slot that counts its cancellation in the hub."""

    __slots__ = ("hub",)

    def __init__(self, connection: Connection, hub: CountingHub) -> None:
        super().__init__(connection)
        self.hub = hub

    def cancel(self) -> None:
        self.hub.cancelled += 1
        self.hub.progress.set()


class CountingHub(FakeHub):
    """A hub that counts cancelled slots."""

    def __init__(self) -> None:
        super().__init__(ServerLimits(max_requests_in_flight=IN_FLIGHT))
        self.cancelled = 0

    def handle(self, connection: Connection, frame: memoryview) -> Sequence[Payload] | Slot | None:
        answer = super().handle(connection, frame)
        if isinstance(answer, Slot):
            answer = CountedSlot(connection, self)
            self.slots[-1] = self.slots[-1][0], answer
        self.progress.set()
        return answer

    def only(self) -> Connection:
        (connection,) = self.connections
        return connection


def later(count: int) -> bytes:
    return b"".join(framed(b"later %d" % number) for number in range(count))


@on_loop
async def test_the_responses_of_a_client_that_closes_are_cancelled() -> None:
    hub = CountingHub()
    async with serving(hub) as connect:
        client = await connect()
        await client.send(later(3))
        await hub.until(lambda: len(hub.slots) == 3)
        client.sock.close()
        await hub.until(lambda: not hub.connections)
        assert hub.cancelled == 3


@pytest.mark.parametrize("how", ["abort", "close", "bad frame", "asked to"])
@on_loop
async def test_the_responses_of_a_connection_that_the_server_closes_are_cancelled(how: str) -> None:
    hub = CountingHub()
    async with serving(hub) as connect:
        client = await connect()
        await client.send(later(3))
        await hub.until(lambda: len(hub.slots) == 3)
        if how == "abort":
            hub.only().abort()
        elif how == "close":
            hub.only().close("for a reason")
        else:
            await client.send(framed(b"close") if how == "asked to" else b"\xff" * 16)
        await hub.until(lambda: hub.cancelled == 3)
        assert await client.closed()
        await hub.until(lambda: not hub.connections)
        assert hub.cancelled == 3


@on_loop
async def test_a_response_that_is_ready_is_not_cancelled() -> None:
    hub = CountingHub()
    async with serving(hub) as connect:
        client = await connect()
        await client.send(framed(b"now") + later(1))
        assert await client.receive_frame() == b"now"
        await hub.until(lambda: len(hub.slots) == 1)
        hub.fill()
        hub.end()
        assert await client.receive_frame() == b"later 0"
        client.sock.close()
        await hub.until(lambda: not hub.connections)
        assert hub.cancelled == 0


async def closed_at_the_bound(hub: CountingHub, connect, more: bytes, *, reset: bool) -> None:
    """Fill a client's requests in flight, send more, and close: the connection is not read meanwhile."""
    client = await connect()
    await client.send(later(IN_FLIGHT) + more)
    await hub.until(lambda: len(hub.slots) == IN_FLIGHT)
    await hub.until(lambda: hub.only().deaf)
    notice_closed(hub.connections)
    assert hub.cancelled == 0
    if reset:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sock.close()
    async with asyncio.timeout(10):
        while not hub.cancelled:
            notice_closed(hub.connections)
            await asyncio.sleep(0)


@pytest.mark.parametrize("reset", [False, True])
@on_loop
async def test_the_end_of_a_client_is_noticed_while_it_is_not_read(*, reset: bool) -> None:
    hub = CountingHub()
    async with serving(hub) as connect:
        await closed_at_the_bound(hub, connect, b"", reset=reset)
        await hub.until(lambda: not hub.connections)
        assert hub.cancelled == IN_FLIGHT


@on_loop
async def test_unread_requests_of_a_closed_client_are_handled() -> None:
    hub = CountingHub()
    more = later(3 * IN_FLIGHT) + framed(b"none") + framed(b"last")
    async with serving(hub) as connect:
        await closed_at_the_bound(hub, connect, more, reset=False)
        await hub.until(lambda: not hub.connections)
        assert hub.handled[-2:] == [b"none", b"last"]
        assert hub.cancelled == 4 * IN_FLIGHT
