"""A bound listener: its sockets, its certificate, and the connections it makes."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.config.broker import BrokerConfig
from headrace.config.listeners import ListenAddress, Listener
from headrace.errors import ConfigError
from headrace.ports import Journal
from headrace.server.connections.connection import Connection
from headrace.server.hub import BrokerHub
from headrace.server.listen import bind
from headrace.server.tls.connection import TlsConnection
from headrace.server.tls.context import ServerTls

_BACKLOG: Final = 1024


class BoundListener:
    """A listener with a certificate and a bound port. It accepts connections after `serve`."""

    def __init__(self, listener: Listener, config: BrokerConfig, journal: Journal) -> None:
        """Read the certificate, and bind the port.

        Raises:
            ConfigError: The certificate cannot be used, no client could log in, or the address is in use, unknown or
                not allowed.
        """
        self.tls: ServerTls | None = None
        own = config.for_listener(listener.name)
        if listener.protocol.sasl and not own.sasl_enabled_mechanisms:
            raise ConfigError(
                f"listener {listener.name}: sasl.enabled.mechanisms is empty, so that no client could log in"
            )
        if listener.protocol.encrypted:
            self.tls = ServerTls(listener.name, own, journal)
        self._sockets = bind(listener.address)
        self._servers: list[asyncio.AbstractServer] = []
        port = self._sockets[0].getsockname()[1]
        self.listener = listener._replace(address=ListenAddress(listener.address.host, port))
        """The listener with its actual port."""

    async def serve(self, hub: BrokerHub, loop: asyncio.AbstractEventLoop) -> None:
        """Accept connections.

        Raises:
            ConfigError: Another process has taken the port in the meantime.
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
                # Linux lets two processes bind a port while neither listens. The other process listened first.
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
        """Leave new connections in the queue of the operating system. Accepted connections stay open."""
        for sock in self._sockets:
            loop.remove_reader(sock.fileno())

    def stop_serving(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()

    def close(self) -> None:
        """Release the port of the listener."""
        for sock in self._sockets:
            sock.close()
