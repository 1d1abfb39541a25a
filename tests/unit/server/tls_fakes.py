"""A TLS client over a plain socket, so that a test decides which ciphertext is sent when."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.config.broker import parse_broker_config
from headrace.config.listeners import Listener, parse_listener, parse_protocol_map
from headrace.server.tls.connection import TlsConnection
from headrace.server.tls.context import ServerTls
from tests.fixtures.certificates import Certificates, KeyPair
from tests.unit.server.fakes import Client, FakeHub, RecordingJournal, serving

LISTENER: Listener = parse_listener("SSL://127.0.0.1:0", parse_protocol_map(""))


class TlsClient(Client):
    """The client side, with TLS."""

    def __init__(self, plain: Client, context: ssl.SSLContext) -> None:
        super().__init__(plain.sock)
        self._plain = plain
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def handshake(self) -> None:
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                await self._plain.send(self.outgoing.read())
                return
            await self._plain.send(self.outgoing.read())
            self.fill(await self._plain.receive_some(1 << 20))

    def fill(self, ciphertext: bytes) -> None:
        if not ciphertext:
            raise ConnectionResetError("the server has closed")
        self.incoming.write(ciphertext)

    def seal(self, data: bytes) -> bytes:
        """Return the ciphertext of some bytes. It can be sent in any pieces."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.tls.write(rest) :]
        return self.outgoing.read()

    async def send(self, data: bytes) -> None:
        await self._plain.send(self.seal(data))

    async def receive_some(self, most: int) -> bytes:
        while True:
            try:
                return self.tls.read(most)
            except ssl.SSLWantReadError:
                self.fill(await self._plain.receive_some(1 << 20))


def server_tls(
    certificates: Certificates, pair: KeyPair | None = None, **options: str
) -> ServerTls:
    """Return the TLS state of a listener. `options` are attributes."""
    given = {name.replace("_", "."): text for name, text in options.items()}
    location = str((pair or certificates.server).pem)
    config = parse_broker_config({"ssl.keystore.location": location, **given})
    return ServerTls("SSL", config, RecordingJournal())


def client_context(certificates: Certificates, pair: KeyPair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if pair is not None:
        context.load_cert_chain(pair.pem)
    return context


@contextlib.asynccontextmanager
async def serving_tls(
    hub: FakeHub, tls: ServerTls, context: ssl.SSLContext
) -> AsyncIterator[Callable[..., Awaitable[TlsClient]]]:
    """Run a listener with TLS over `hub`. Yield an async function that connects and does the handshake."""

    def accept(hub: FakeHub, loop: asyncio.AbstractEventLoop) -> TlsConnection:
        return TlsConnection(hub, loop, LISTENER, tls)

    async def meet(plain: Client) -> TlsClient:
        client = TlsClient(plain, context)
        await client.handshake()
        return client

    async with serving(hub, accept, meet) as connect:
        yield connect  # type: ignore[misc]  # `meet` makes them TlsClients
