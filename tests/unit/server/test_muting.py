"""Muted connections of clients above a quota: they are not read for a while, and other clients are not affected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.server.connections.connection import Connection
from headrace.server.hub_interface import Slot
from headrace.server.limits import ServerLimits
from headrace.types import Payload
from tests.unit.server.fakes import Client, FakeHub, framed, serving
from tests.unit.server.loops import on_loop

LONG_MS = 3_600_000


class MutingHub(FakeHub):
    """`mute N` gets a response, and mutes its connection for N milliseconds."""

    def handle(self, connection: Connection, frame: memoryview) -> Sequence[Payload] | Slot | None:
        body = bytes(frame[8:])
        if body.startswith(b"mute "):
            connection.mute(self.now_ms + int(body[5:]))
        return super().handle(connection, frame)


async def serve_other(other: Client) -> None:
    """Several iterations of the event loop, in which another connection is served."""
    for number in range(20):
        await other.send(framed(b"%d" % number))
        assert await other.receive_frame() == b"%d" % number


@on_loop
async def test_a_muted_connection_sends_its_response_and_delays_later_requests() -> None:
    hub = MutingHub()
    async with serving(hub) as connect:
        muted, other = await connect(), await connect()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await muted.send(framed(b"mute 300") + framed(b"behind"))
        assert await muted.receive_frame() == b"mute 300"
        await muted.send(framed(b"and this"))
        await serve_other(other)
        if loop.time() - began < 0.3:  # otherwise this machine is too slow for a result
            assert b"behind" not in hub.handled
        assert await muted.receive_frame() == b"behind"
        assert loop.time() - began >= 0.29
        assert await muted.receive_frame() == b"and this"


@on_loop
async def test_answers_in_flight_are_still_sent() -> None:
    hub = MutingHub()
    async with serving(hub) as connect:
        client = await connect()
        await client.send(framed(b"later") + framed(b"mute %d" % LONG_MS) + framed(b"behind"))
        await hub.until(lambda: len(hub.handled) == 2)
        hub.fill()
        hub.end()
        assert await client.receive_frame() == b"later"
        assert await client.receive_frame() == b"mute %d" % LONG_MS
        await serve_other(await connect())
        assert b"behind" not in hub.handled


@on_loop
async def test_a_late_answer_may_mute() -> None:
    hub = MutingHub()
    async with serving(hub) as connect:
        client, other = await connect(), await connect()
        await client.send(framed(b"later"))
        await hub.until(lambda: len(hub.slots) == 1)
        hub.slots[0][1].connection.mute(hub.now_ms + LONG_MS)
        hub.fill()
        hub.end()
        assert await client.receive_frame() == b"later"
        await client.send(framed(b"behind"))
        await serve_other(other)
        assert b"behind" not in hub.handled


@on_loop
async def test_the_longest_pause_counts() -> None:
    hub = MutingHub()
    async with serving(hub) as connect:
        client, other = await connect(), await connect()
        await client.send(framed(b"mute %d" % LONG_MS) + framed(b"behind"))
        assert await client.receive_frame() == b"mute %d" % LONG_MS
        (connection,) = [each for each in hub.connections if each._unmute is not None]
        timer = connection._unmute
        connection.mute(hub.now_ms + 1)
        connection.mute(hub.now_ms - 1)
        assert connection._unmute is timer
        connection.mute(hub.now_ms + 2 * LONG_MS)
        assert connection._unmute is not timer
        assert timer is not None
        assert timer.cancelled()
        await serve_other(other)
        assert b"behind" not in hub.handled


@on_loop
async def test_a_muted_connection_is_neither_idle_nor_slow() -> None:
    hub = MutingHub(ServerLimits(idle_timeout_ms=60_000, frame_timeout_ms=1_000))
    async with serving(hub) as connect:
        client = await connect()
        (connection,) = hub.connections
        await client.send(framed(b"mute %d" % LONG_MS) + framed(b"half a frame")[:-3])
        assert await client.receive_frame() == b"mute %d" % LONG_MS
        connection.check(hub.now_ms + 120_000)
        assert not connection.lost
        assert not hub.lines.lines


@on_loop
async def test_a_muted_connection_that_ends_leaves_no_timer() -> None:
    hub = MutingHub()
    async with serving(hub) as connect:
        client = await connect()
        (connection,) = hub.connections
        await client.send(framed(b"mute %d" % LONG_MS))
        assert await client.receive_frame() == b"mute %d" % LONG_MS
        timer = connection._unmute
        connection.abort()
        assert await client.closed()
        await hub.until(lambda: not hub.connections)
        assert timer is not None
        assert timer.cancelled()
        connection.mute(hub.now_ms + 1)
        assert connection._unmute is timer
