"""A listener at work: its sockets, its certificate, and the connections it makes."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.config.broker import BrokerConfig
from headrace.config.listeners import ListenAddress, Listener
from headrace.errors import ConfigError
from headrace.ports import Journal
from headrace.server.connection import Connection
from headrace.server.hub import BrokerHub
from headrace.server.listen import bind
from headrace.server.tls_connection import TlsConnection
from headrace.server.tls_context import ServerTls

_BACKLOG: Final = 1024


class BoundListener:
    """A listener whose certificate is read and whose port is claimed; it serves nobody before `serve`."""

    def __init__(self, listener: Listener, config: BrokerConfig, journal: Journal) -> None:
        """Read the certificate, and bind.

        Raises:
            ConfigError: The certificate cannot be used, nobody could log in, or the address is taken, unknown or not
                allowed.
        """
        self.tls: ServerTls | None = None
        own = config.for_listener(listener.name)
        if listener.protocol.sasl and not own.sasl_enabled_mechanisms:
            raise ConfigError(
                f"listener {listener.name}: sasl.enabled.mechanisms is empty, so that nobody could log in"
            )
        if listener.protocol.encrypted:
            self.tls = ServerTls(listener.name, own, journal)
        self._sockets = bind(listener.address)
        self._servers: list[asyncio.AbstractServer] = []
        port = self._sockets[0].getsockname()[1]
        self.listener = listener._replace(address=ListenAddress(listener.address.host, port))
        """With the port that was chosen."""

    async def serve(self, hub: BrokerHub, loop: asyncio.AbstractEventLoop) -> None:
        """Accept connections.

        Raises:
            ConfigError: The port is taken after all.
        """
        listener, tls = self.listener, self.tls

        def connection() -> Connection:
            if tls is None:
                return Connection(hub, loop, listener)
            return TlsConnection(hub, loop, listener, tls)

        for sock in self._sockets:
            try:
                server = await loop.create_server(connection, sock=sock, backlog=_BACKLOG)
            except OSError as error:
                # Linux lets two processes bind a port, as long as neither listens: the other one was faster.
                raise ConfigError(f"cannot listen on {listener}: {error.strerror}") from error
            self._servers.append(server)
        if tls is not None:
            tls.run_aside = hub.aside.run
            hub.sweeps.append(tls.look)

    def reload(self) -> None:
        """Read the certificate again."""
        if self.tls is not None:
            self.tls.reload()

    def stop_accepting(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave new connections in the queue of the system; those that were accepted go on."""
        for sock in self._sockets:
            loop.remove_reader(sock.fileno())

    def stop_serving(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()

    def close(self) -> None:
        """Give the port back."""
        for sock in self._sockets:
            sock.close()
