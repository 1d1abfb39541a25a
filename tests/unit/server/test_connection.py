"""Connections: order, coalescing, partial frames, back-pressure, time-outs, memory."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from headrace.server.connections import connection as module
from headrace.server.connections import outgoing
from headrace.server.connections.connection import Connection
from headrace.server.limits import KIB, MIB, ServerLimits
from headrace.types import FileRange
from tests.unit.server.fakes import (
    PRODUCE,
    Client,
    CountingFile,
    FakeHub,
    MemoryFile,
    RealFile,
    framed,
    reply,
    serving,
)
from tests.unit.server.loops import on_loop


@on_loop
async def test_a_request_gets_one_response() -> None:
    async with serving(FakeHub()) as connect:
        client = await connect()
        await client.send(framed(b"hello"))
        assert await client.receive_frame() == b"hello"


@on_loop
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(FakeHub()) as connect:
        client = await connect()
        bodies = [b"%d" % number for number in range(5_000)]
        sending = asyncio.ensure_future(client.send(b"".join(map(framed, bodies))))
        assert [await client.receive_frame() for _ in bodies] == bodies
        await sending


@on_loop
async def test_responses_of_one_wake_up_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = 0
    send = outgoing.SocketWriter.send

    def counted(self: outgoing.SocketWriter, payloads: Any) -> None:
        nonlocal writes
        writes += 1
        send(self, payloads)

    monkeypatch.setattr(outgoing.SocketWriter, "send", counted)
    async with serving(FakeHub()) as connect:
        client = await connect()
        await client.send(b"".join(framed(b"%02d" % number) for number in range(50)))
        await client.receive(50 * 6)
    assert writes <= 3  # one, unless the kernel delivered the requests in pieces


@on_loop
async def test_bytes_may_come_one_at_a_time() -> None:
    hub = FakeHub()
    async with serving(hub) as connect:
        client = await connect()
        for byte in framed(b"slowly") + framed(b"but surely"):
            await client.send(bytes([byte]))
        assert await client.receive_frame() == b"slowly"
        assert await client.receive_frame() == b"but surely"


@pytest.mark.parametrize(
    "size", [1, 100, 16 * KIB - 13, 16 * KIB - 12, 16 * KIB, 70_000, 3 * MIB + 1]
)
@on_loop
async def test_requests_of_any_size_arrive_whole(size: int) -> None:
    hub = FakeHub()
    async with serving(hub) as connect:
        client = await connect()
        body = os.urandom(size)
        for _ in range(3):
            sending = asyncio.ensure_future(
                client.send(framed(b"a") + framed(body, PRODUCE) + framed(b"z"))
            )
            assert await client.receive_frame() == b"a"
            assert await client.receive_frame() == body
            assert await client.receive_frame() == b"z"
            await sending


@on_loop
async def test_later_responses_wait_behind_a_deferred_response() -> None:
    hub = FakeHub()
    async with serving(hub) as connect:
        client = await connect()
        await client.send(framed(b"later 1") + framed(b"now") + framed(b"later 2") + framed(b"end"))
        await hub.until(lambda: len(hub.handled) == 4)
        hub.fill(1)
        hub.end()
        hub.fill(0)
        hub.end()
        expected = [b"later 1", b"now", b"later 2", b"end"]
        assert [await client.receive_frame() for _ in expected] == expected


@on_loop
async def test_a_request_without_response_leaves_no_gap() -> None:
    async with serving(FakeHub()) as connect:
        client = await connect()
        await client.send(framed(b"a") + framed(b"none") + framed(b"b"))
        assert [await client.receive_frame(), await client.receive_frame()] == [b"a", b"b"]


@on_loop
async def test_the_next_request_waits_while_one_is_answered_in_steps() -> None:
    hub = FakeHub()
    async with serving(hub) as connect:
        client = await connect()
        await client.send(framed(b"a") + framed(b"steps") + framed(b"b") + framed(b"c"))
        await hub.until(lambda: len(hub.handled) == 2)
        other = await connect()
        await other.send(framed(b"ping"))
        assert await other.receive_frame() == b"ping"
        assert hub.handled == [b"a", b"steps", b"ping"]
        (connection,) = {slot.connection for _, slot in hub.slots}
        connection.session.busy = False
        connection.session.on_idle()
        await hub.until(lambda: len(hub.handled) == 5)
        hub.fill()
        hub.end()
        expected = [b"a", b"steps", b"b", b"c"]
        assert [await client.receive_frame() for _ in expected] == expected


@on_loop
async def test_a_turn_ends_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled_at_end_of_turn: list[int] = []

    class SlowHub(FakeHub):
        """Each request takes six milliseconds of a manual clock."""

        def handle(self, connection: Connection, frame: memoryview) -> Any:
            answer = super().handle(connection, frame)
            monkeypatch.setattr(module, "perf_counter_ns", lambda: 6_000_000 * len(self.handled))
            return answer

        def end(self) -> None:
            handled_at_end_of_turn.append(len(self.handled))
            super().end()

    monkeypatch.setattr(module, "perf_counter_ns", lambda: 0)
    async with serving(SlowHub()) as connect:
        client = await connect()
        bodies = [b"%d" % number for number in range(10)]
        await client.send(b"".join(map(framed, bodies)))
        assert [await client.receive_frame() for _ in bodies] == bodies
    turns = zip([0, *handled_at_end_of_turn], handled_at_end_of_turn, strict=False)
    assert max(after - before for before, after in turns) <= 2


@on_loop
async def test_requests_in_flight_are_bounded() -> None:
    hub = FakeHub(ServerLimits(max_requests_in_flight=8))
    async with serving(hub) as connect:
        client = await connect()
        await client.send(b"".join(framed(b"later %02d" % number) for number in range(20)))
        await hub.until(lambda: len(hub.handled) == 8)
        other = await connect()
        await other.send(
            framed(b"ping")
        )  # other connections are served meanwhile, in several iterations
        assert await other.receive_frame() == b"ping"
        assert len(hub.slots) == 8
        for number in range(20):
            await hub.until(lambda: bool(hub.slots))
            hub.fill()
            hub.end()
            assert await client.receive_frame() == b"later %02d" % number


@on_loop
async def test_a_response_to_a_closed_connection_is_dropped() -> None:
    hub = FakeHub()
    async with serving(hub) as connect:
        client = await connect()
        await client.send(framed(b"later"))
        await hub.until(lambda: bool(hub.slots))
        client.sock.close()
        await hub.until(lambda: not hub.connections)
        hub.fill()
        hub.end()


@pytest.mark.parametrize("size", [0, 1, 1000, 64 * KIB - 1, 64 * KIB, 5 * MIB + 7, 30 * MIB])
@pytest.mark.parametrize("kind", ["file", "memory"])
@on_loop
async def test_file_ranges_arrive_unchanged(tmp_path: Path, kind: str, size: int) -> None:
    content = os.urandom(1 << 16) * (31 * MIB >> 16)
    path = tmp_path / "segment"
    path.write_bytes(content)
    hub = FakeHub()
    hub.file = RealFile(path) if kind == "file" else MemoryFile(content, 100_000)
    async with serving(hub) as connect:
        client = await connect()
        await client.send(framed(b"before") + framed(b"file:1000:%d" % size) + framed(b"after"))
        assert await client.receive_frame() == b"before"
        assert await client.receive_frame() == content[1000 : 1000 + size]
        assert await client.receive_frame() == b"after"
    if isinstance(hub.file, RealFile):
        hub.file.close()


@on_loop
async def test_many_small_ranges_are_not_all_read_into_memory(tmp_path: Path) -> None:
    content = os.urandom(8 * MIB)
    path = tmp_path / "segment"
    path.write_bytes(content)
    file = CountingFile(path)
    ranges = [FileRange(file, at, 32 * KIB) for at in range(0, len(content), 32 * KIB)]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        theirs.settimeout(0)
        client = Client(theirs)
        errors: list[OSError] = []
        writer = outgoing.SocketWriter(
            asyncio.get_running_loop(), ours, lambda: None, errors.append
        )
        writer.send(ranges)
        assert file.read_bytes <= outgoing.READ_MAX_BYTES
        assert await client.receive(len(content)) == content
        assert writer.queued_bytes == 0
        assert not errors
        writer.close()
    file.close()


@on_loop
async def test_many_system_calls_of_one_response_are_divided_into_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(MIB))
    file = RealFile(path)
    ranges = [FileRange(file, 0, KIB)] * 5_000
    calls = 0

    def sendfile(_out: int, _in: int, _offset: int, count: int) -> int:
        nonlocal calls
        calls += 1
        return count  # a receiver that is never slow

    monkeypatch.setattr("headrace.server.connections.outgoing.os.sendfile", sendfile)
    monkeypatch.setattr(
        outgoing, "READ_MAX_BYTES", 0
    )  # all ranges by sendfile, as in a long response
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        drained = asyncio.Event()
        errors: list[OSError] = []
        writer = outgoing.SocketWriter(asyncio.get_running_loop(), ours, drained.set, errors.append)
        writer.send(ranges)
        while writer.queued_bytes:
            assert calls <= 1_024, "calls of one turn"
            calls = 0
            drained.clear()
            await drained.wait()
        assert not errors
        writer.close()
    file.close()


@pytest.mark.parametrize("size", [1, 100, 70_000, 5 * MIB])
@on_loop
async def test_answers_sent_one_by_one_arrive_whole_and_in_order(size: int) -> None:
    answers = [bytearray(os.urandom(size)) for _ in range(3)]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0)
        theirs.settimeout(0)
        client = Client(theirs)
        errors: list[OSError] = []
        writer = outgoing.SocketWriter(
            asyncio.get_running_loop(), ours, lambda: None, errors.append
        )
        for answer in answers:
            writer.send([answer])  # the second finds the first in the queue if it is large
        assert await client.receive(3 * size) == b"".join(answers)
        assert writer.queued_bytes == 0
        assert writer.sent_bytes == 3 * size
        assert not errors
        writer.close()


@on_loop
async def test_a_file_that_is_too_short_closes_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 100_000)
    hub = FakeHub()
    hub.file = RealFile(path)
    async with serving(hub) as connect:
        for request in (b"file:0:200000", b"file:99990:1000"):
            client = await connect()
            await client.send(framed(request))
            await client.receive(300_000)  # up to the end
    assert len([line for line in hub.lines.lines if "shorter" in str(line)]) == 2
    hub.file.close()


@on_loop
async def test_a_slow_reader_is_not_read_from_and_bounds_memory() -> None:
    limits = ServerLimits(max_queued_bytes=256 * KIB)
    hub = FakeHub(limits)
    async with serving(hub) as connect:
        client = await connect(SO_RCVBUF=16 * KIB)
        requests = b"".join(
            framed(b"%08d" % number + b"x" * 8000) for number in range(2_000)
        )  # 16 MB
        sending = asyncio.ensure_future(client.send(requests))
        (connection,) = hub.connections
        await hub.until(lambda: connection.unsent_bytes > limits.max_queued_bytes)
        other = await connect()
        for _ in range(20):
            await other.send(framed(b"ping"))
            assert await other.receive_frame() == b"ping"
        assert connection.unsent_bytes < 4 * limits.max_queued_bytes
        assert not sending.done()
        for number in range(2_000):
            assert (await client.receive_frame())[:8] == b"%08d" % number
        await sending


@on_loop
async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    hub = FakeHub(ServerLimits(max_queued_bytes=64 * KIB, write_timeout_ms=5_000))
    hub.file = MemoryFile(b"x" * 20 * MIB, MIB)
    async with serving(hub) as connect:
        client = await connect(SO_RCVBUF=16 * KIB)
        await client.send(framed(b"file:0:%d" % (20 * MIB)))
        (connection,) = hub.connections
        await hub.until(lambda: connection.unsent_bytes > 0)
        connection.check(hub.now_ms)
        connection.check(hub.now_ms + 4_000)
        assert not hub.lines.lines
        connection.check(hub.now_ms + 6_001)
        assert "took none" in hub.lines.reasons[0]
        await asyncio.sleep(0)
        assert connection.lost


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"POST /topics HTTP/1.1\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"\xff\xff\xff\xff", "length of -1 bytes"),
        (b"\x80\x00\x00\x00", "length of -2147483648 bytes"),
        (b"\x00\x00\x00\x00", "length of 0 bytes"),
        (b"\x00\x00\x00\x07", "length of 7 bytes"),
        (b"\x7f\xff\xff\xff", "length of 2147483647 bytes"),
        (struct.pack(">i", 100 * MIB + 1), "length of 104857601 bytes"),
        (struct.pack(">ih", 1 * MIB + 1, 3), "only Produce may exceed"),
        (framed(b"close"), "asked to"),
    ],
)
@on_loop
async def test_garbage_closes_the_connection_with_a_reason(sent: bytes, reason: str) -> None:
    hub = FakeHub()
    async with serving(hub) as connect:
        bystander = await connect()
        client = await connect()
        await client.send(framed(b"fine") + sent)
        assert await client.receive_frame() == b"fine"
        assert await client.closed()
        await bystander.send(framed(b"ping"))
        assert await bystander.receive_frame() == b"ping"
    (line,) = hub.lines.lines
    assert line[0] == "connection_closed"
    assert reason in str(line[1]["reason"])
    assert hub.budget.used == 0


@on_loop
async def test_an_announced_size_allocates_nothing() -> None:
    hub = FakeHub()
    async with serving(hub) as connect:
        client = await connect()
        await client.send(framed(b"ping") + struct.pack(">ih", 100 * MIB, 0) + b"x" * 1000)
        assert await client.receive_frame() == b"ping"
        assert hub.budget.used <= 256 * KIB


@on_loop
async def test_a_big_buffer_is_given_back() -> None:
    hub = FakeHub()
    async with serving(hub) as connect:
        client = await connect()
        body = b"x" * 8 * MIB
        sending = asyncio.ensure_future(client.send(framed(body, PRODUCE)))
        assert await client.receive_frame() == body
        await sending
        assert hub.budget.used > 4 * MIB
        (connection,) = hub.connections
        connection.check(hub.now_ms)
        connection.check(hub.now_ms + 1000)
        assert hub.budget.used == 0
        await client.send(framed(b"still there"))
        assert await client.receive_frame() == b"still there"


@on_loop
async def test_half_received_requests_share_the_budget_without_deadlock() -> None:
    hub = FakeHub(ServerLimits(memory_budget_bytes=6 * MIB))
    async with serving(hub) as connect:
        body = b"x" * 4 * MIB
        clients: list[Client] = [await connect() for _ in range(6)]
        sendings = [asyncio.ensure_future(client.send(framed(body, PRODUCE))) for client in clients]
        peak = 0

        async def receive(client: Client) -> None:
            nonlocal peak
            assert await client.receive_frame() == body
            peak = max(peak, hub.budget.used)

        await asyncio.gather(*map(receive, clients))
        await asyncio.gather(*sendings)
        assert peak <= (6 + 4 + 1) * MIB
        for connection in hub.connections:
            connection.check(hub.now_ms)
            connection.check(hub.now_ms + 1)
        assert hub.budget.used == 0
        assert not hub.budget.contended


@on_loop
async def test_an_incomplete_request_is_closed() -> None:
    hub = FakeHub(ServerLimits(frame_timeout_ms=10_000))
    async with serving(hub) as connect:
        client = await connect()
        await client.send(framed(b"one") + framed(b"two")[:6])
        assert await client.receive_frame() == b"one"
        (connection,) = hub.connections
        connection.check(hub.now_ms + 10_000)
        assert not hub.lines.lines
        connection.check(hub.now_ms + 10_001)
        assert await client.closed()
    assert "not its rest" in hub.lines.reasons[0]


@on_loop
async def test_a_request_that_arrives_too_slowly_is_closed() -> None:
    hub = FakeHub(ServerLimits(frame_timeout_ms=10_000, min_bytes_per_second=1000))
    async with serving(hub) as connect:
        client = await connect()
        (connection,) = hub.connections
        await client.send(framed(b"x" * 100_000, PRODUCE)[:100])
        await hub.until(lambda: connection._frame_began_ms >= 0)
        for _ in range(10):
            hub.now_ms += 1_000
            await client.send(b"x")
            await hub.until(lambda: connection._received_ms == hub.now_ms)
            connection.check(hub.now_ms)
        assert not hub.lines.lines
        hub.now_ms += 1_000
        connection.check(hub.now_ms)
        assert await client.closed()


@on_loop
async def test_an_idle_connection_is_closed_and_a_waiting_one_is_not() -> None:
    hub = FakeHub(ServerLimits(idle_timeout_ms=60_000))
    async with serving(hub) as connect:
        idle = await connect()
        waiting = await connect()
        await waiting.send(framed(b"later"))
        await hub.until(lambda: len(hub.slots) == 1)
        for connection in list(hub.connections):
            connection.check(hub.now_ms + 60_001)
        assert await idle.closed()
        hub.fill()
        hub.end()
        assert await waiting.receive_frame() == b"later"
    assert not hub.lines.lines


@on_loop
async def test_a_refused_connection_is_closed_at_once() -> None:
    hub = FakeHub()
    hub.refuse = "too many"
    async with serving(hub) as connect:
        client = await connect()
        assert await client.closed()
    assert hub.lines.reasons == ["too many"]


def test_reply_is_framed() -> None:
    assert reply(b"ab") == b"\x00\x00\x00\x02ab"
