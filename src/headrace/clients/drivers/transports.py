"""The TCP connections of an asyncio client: transports of the event loop, and their protocol."""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import os
import socket
from collections.abc import Coroutine
from typing import Any, Protocol, cast

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.credentials import Credentials, no_token
from headrace.clients.drivers.sockets import os_reason
from headrace.clients.drivers.tls import client_context, distrust
from headrace.clients.network.links import Link
from headrace.clients.network.pool import Pool
from headrace.errors import AuthenticationError, ProtocolError
from headrace.types import Buffer, FileRange


class PoolOwner(Protocol):
    """The driver, as far as its transports use it."""

    pool: Pool

    def refresh(self) -> None:
        """Pass the time of the clock to the engine."""

    def arm(self) -> None:
        """Run the due callbacks, and set the timer for the next event."""


class LinkProtocol(asyncio.BufferedProtocol):
    """The asyncio protocol of one link."""

    def __init__(self, driver: PoolOwner, link: Link) -> None:
        self._driver = driver
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to use the transport."""
        transport = cast("asyncio.Transport", transport)  # those of uvloop are of no such class
        if self._link.lost is None:
            transport.set_write_buffer_limits(
                high=0
            )  # so that `resume_writing` is called after every write
            self._link.socket = transport
            self._driver.pool.connected(self._link)
        else:
            transport.abort()

    def resume_writing(self) -> None:
        """Complete the requests that have no response: all output has been written."""
        self._driver.refresh()
        self._link.connection.written()
        self._driver.pool.received(self._link)
        self._driver.arm()

    def get_buffer(self, _: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._link.connection.get_buffer()

    def buffer_updated(self, count: int) -> None:
        """Handle bytes that were received into the buffer."""
        link, driver = self._link, self._driver
        if link.lost is not None:
            return
        driver.refresh()
        try:
            link.connection.bytes_received(count)
        except AuthenticationError as error:
            driver.pool.denied(link, error)
        except ProtocolError as error:
            driver.pool.lost(link, f"lost: {error}")
        except Exception as error:  # noqa: BLE001 - calls that wait for the connection get it
            driver.pool.failed(link, error)
        else:
            driver.pool.received(link)
        driver.arm()

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end of the connection to the pool."""
        link, driver = self._link, self._driver
        if isinstance(error, OSError):
            reason = f"lost: {os_reason(error)}"
        else:
            reason = "closed the connection" if error is None else f"lost: {error}"
        driver.refresh()
        distrusted = None if error is None or link.ready else distrust(link.peer, error)
        if distrusted is not None:
            driver.pool.denied(link, distrusted)
        else:
            driver.pool.lost(link, reason)
        driver.arm()


class Transports:
    """The shell of a `Pool` on an event loop."""

    def __init__(
        self, driver: PoolOwner, loop: asyncio.AbstractEventLoop, config: ClientConfig
    ) -> None:
        self.opening: dict[Link, asyncio.Task[None]] = {}
        """The tasks that connect or authenticate a link."""
        self._config = config
        self._tls = client_context(config) if config.encrypted else None
        self._credentials = Credentials(config) if config.authenticates else None
        self._driver = driver
        self._loop = loop

    def read_certificates(self) -> None:
        """Read the files of the certificates again, for the connections that follow.

        Raises:
            ConfigError: A file cannot be used. The previous certificates stay in use.
        """
        if self._tls is not None:
            self._tls = client_context(self._config)

    def open(self, link: Link) -> None:
        """Start to connect a link."""
        self._begin(link, self._connect(link))

    def _begin(self, link: Link, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self.opening[link] = task

        def ended(_: object) -> None:
            if self.opening.get(link) is task:
                del self.opening[link]

        task.add_done_callback(ended)

    def authenticate(self, link: Link) -> None:
        """Pass credentials to the pool: at once, or after the program's function has returned a token."""
        credentials = self._credentials
        assert credentials is not None, "the pool requests this only if the client authenticates"
        if credentials.program_is_asked:
            self._begin(link, self._ask_program(link, credentials))
            return
        try:
            client = credentials.client()
        except AuthenticationError as error:
            self._driver.pool.denied(link, error)
        else:
            self._driver.pool.present(link, client)

    async def _ask_program(self, link: Link, credentials: Credentials) -> None:
        try:
            if credentials.asks_a_coroutine:
                answer = await credentials.ask_program()
            else:
                answer = await self._loop.run_in_executor(None, credentials.ask_program)
                answer = await answer if inspect.isawaitable(answer) else answer
            credentials.keep(answer)
            client = credentials.client()
        except Exception as error:  # noqa: BLE001 - calls that wait for the connection get it
            self._driver.refresh()
            self._driver.pool.denied(link, no_token(error))
        else:
            self._driver.refresh()
            self._driver.pool.present(link, client)
        self._driver.arm()

    def flush(self, link: Link) -> None:
        """Pass the connection's output to its transport."""
        if link.lost is None and link.open:
            transport = cast("asyncio.Transport", link.socket)
            transport.writelines(map(_bytes, link.connection.take_output()))
            if not transport.get_write_buffer_size():
                link.connection.written()

    def close(self, link: Link) -> None:
        """Close a link's transport, or cancel the task that connects it."""
        task = self.opening.pop(link, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if link.open:
            cast("asyncio.Transport", link.socket).abort()

    async def _connect(self, link: Link) -> None:
        host, port = link.address
        # uvloop has no such argument. It tries the addresses of a host one after another.
        races = isinstance(self._loop, asyncio.BaseEventLoop) and not _is_address(host)
        options: dict[str, Any] = {"happy_eyeballs_delay": 0.25} if races else {}
        try:
            await self._loop.create_connection(
                lambda: LinkProtocol(self._driver, link),
                host,
                port,
                ssl=self._tls,
                server_hostname=None if self._tls is None else host,
                **options,
            )
        except (OSError, UnicodeError) as error:
            self._driver.refresh()
            distrusted = distrust(link.peer, error)
            if distrusted is not None:
                self._driver.pool.denied(link, distrusted)
            elif isinstance(error, ConnectionError) and not error.errno:
                # asyncio raises this when the connection ends during the TLS handshake.
                self._driver.pool.lost(link, "closed the connection")
            else:
                self._driver.pool.refused(link, refusal(error))
            self._driver.arm()
        except Exception as error:  # noqa: BLE001 - otherwise the calls of the link would never end
            self._driver.refresh()
            self._driver.pool.failed(link, error)
            self._driver.arm()


def refusal(error: OSError | UnicodeError) -> str:
    """Return the reason why no connection could be opened, as text."""
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError):
        return str(getattr(error, "strerror", error))
    return os.strerror(error.errno) if error.errno else str(error)


def _bytes(payload: Buffer | FileRange) -> Buffer:
    assert not isinstance(payload, FileRange), "a client sends bytes, never ranges of files"
    return payload


def _is_address(host: str) -> bool:
    """Return whether a host is an IP address.

    Without the race between the addresses of a name, asyncio closes the socket of a cancelled task that has just
    connected.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
