"""A hub without a broker: requests are ASCII commands, and responses repeat them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from headrace.ports import Journal
from headrace.server.connections.budget import MemoryBudget
from headrace.server.connections.connection import Connection
from headrace.server.hub_interface import CloseConnectionError, Slot
from headrace.server.limits import ServerLimits
from headrace.types import FileRange, Payload

HEADER = b"\x00\x03\x00\x00\x00\x00\x00\x01"  # api key 3: not Produce
PRODUCE = b"\x00\x00\x00\x00\x00\x00\x00\x01"


def framed(body: bytes, header: bytes = HEADER) -> bytes:
    return struct.pack(">i", len(header) + len(body)) + header + body


def reply(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class RecordingJournal:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    def warning(self, event: str, **fields: object) -> None:
        self.info(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        self.info(event, **fields)

    @property
    def reasons(self) -> list[str]:
        return [str(fields.get("reason", fields)) for _, fields in self.lines]


class RealFile:
    """A file for sendfile."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def fileno(self) -> int | None:
        return self._file.fileno()

    def buffers(self, position: int, size: int) -> Sequence[bytes]:
        self._file.seek(position)
        return [self._file.read(size)]

    def close(self) -> None:
        self._file.close()


class CountingFile(RealFile):
    """A file that counts the bytes that are read into memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read_bytes = 0

    def buffers(self, position: int, size: int) -> Sequence[bytes]:
        self.read_bytes += size
        return super().buffers(position, size)


class MemoryFile:
    """Chunks without a descriptor."""

    def __init__(self, content: bytes, chunk: int) -> None:
        self._content = content
        self._chunk = chunk

    def fileno(self) -> int | None:
        return None

    def buffers(self, position: int, size: int) -> Sequence[memoryview]:
        view = memoryview(self._content)[position : position + size]
        return [view[at : at + self._chunk] for at in range(0, len(view), self._chunk)]


class FakeHub:
    """`later...` waits in `slots` to be filled. `steps...` does too, and keeps the session busy.

    `file:A:B` is a file range, `close` closes the connection, `none` has no response.
    """

    def __init__(self, limits: ServerLimits | None = None) -> None:
        self.limits = limits or ServerLimits()
        self.budget = MemoryBudget(self.limits.memory_budget_bytes)
        self.lines = RecordingJournal()
        self.client_log: Journal = self.lines
        self.now_ms = 1_000
        self.connections: set[Connection] = set()
        self.slots: list[tuple[bytes, Slot]] = []
        self.dirty: list[Connection] = []
        self.handled: list[bytes] = []
        self.accepted = 0
        self.file: RealFile | MemoryFile | None = None
        self.refuse: str | None = None
        self.progress = asyncio.Event()

    def begin(self) -> None:
        pass

    def end(self) -> None:
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            connection.flush()
        self.progress.set()

    def handle(self, connection: Connection, frame: memoryview) -> Sequence[Payload] | Slot | None:
        body = bytes(frame[8:])
        self.handled.append(body[:32])
        if body.startswith(b"later"):
            slot = Slot(connection)
            self.slots.append((body, slot))
            return slot
        if body.startswith(b"steps"):
            connection.session.busy = True
            slot = Slot(connection)
            self.slots.append((body, slot))
            return slot
        if body == b"none":
            return None
        if body == b"close":
            raise CloseConnectionError("asked to")
        if body.startswith(b"file:"):
            assert self.file is not None
            _, position, size = body.split(b":")
            return [struct.pack(">i", int(size)), FileRange(self.file, int(position), int(size))]
        return [bytearray(reply(body))]  # like the functions that encode responses

    def fill(self, index: int = 0) -> None:
        body, slot = self.slots.pop(index)
        slot.fill([bytearray(reply(body))])

    def has_output(self, connection: Connection) -> None:
        self.dirty.append(connection)

    def opened(self, connection: Connection) -> str | None:
        self.accepted += 1
        self.progress.set()
        if self.refuse is None:
            self.connections.add(connection)
        return self.refuse

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.progress.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that a wake-up of the event loop causes."""
        async with asyncio.timeout(10):
            while not condition():
                self.progress.clear()
                await self.progress.wait()


class Client:
    """The client side: a plain non-blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(10):
            await self._loop.sock_sendall(self.sock, data)

    async def receive_some(self, most: int) -> bytes:
        return await self._loop.sock_recv(self.sock, most)

    async def receive(self, count: int) -> bytes:
        pieces: list[bytes] = []
        async with asyncio.timeout(20):
            while count:
                piece = await self.receive_some(min(count, 1 << 20))
                if not piece:
                    break
                pieces.append(piece)
                count -= len(piece)
        return b"".join(pieces)

    async def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.receive(4))
        return await self.receive(size)

    async def closed(self) -> bool:
        """Return whether the server closes the connection, without further bytes."""
        try:
            return await self.receive(1) == b""
        except ConnectionResetError:
            return True


@contextlib.asynccontextmanager
async def serving(
    hub: FakeHub,
    accept: Callable[[FakeHub, asyncio.AbstractEventLoop], Connection] = Connection,
    meet: Callable[[Client], Awaitable[Client]] | None = None,
) -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """Run a listener over `hub`. Yield an async function that connects a `Client`.

    Args:
        hub: The hub of the connections.
        accept: Makes the server side of a connection.
        meet: The first action of the client. Returns the client to use.
    """
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: accept(hub, loop), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    clients: list[Client] = []

    async def connect(**options: int) -> Client:
        sock = socket.socket()
        sock.settimeout(0)
        for name, value in options.items():
            sock.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        before = hub.accepted
        await loop.sock_connect(sock, address)
        clients.append(Client(sock))
        await hub.until(lambda: hub.accepted > before)
        return await meet(clients[-1]) if meet is not None else clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            client.sock.close()
        server.close()
        for connection in list(hub.connections):
            connection.abort()
        await asyncio.sleep(0)
        await server.wait_closed()
