"""A client of kazoo that never queues requests while it is disconnected, and that gives up a dead server early.

kazoo by itself queues requests without a connection, waits for a server as long as a session lasts, and notices a dead
server after two thirds of the session. This module relies on private methods of kazoo;
`tests/integration/zookeeper/test_faults.py` shows that they have their effect.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    SASLException,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from headrace.metadata_stores.zookeeper.settings import ZooKeeperSettings
from headrace.metadata_stores.zookeeper.takeover import SessionKey
from headrace.metadata_stores.zookeeper.tls import tls_context

_LOGGER: Final = logging.getLogger("headrace.zookeeper.kazoo")
_LOGGER.propagate = False  # the store logs what its users have to know
_LOGGER.addHandler(logging.NullHandler())
_SHARE_OF_A_CALL: Final = 3
_RETRY_DELAY_S: Final = 0.05
_RETRY_DELAY_LIMIT_S: Final = 1.0


class NotSent(ConnectionLoss):  # type: ignore[misc]  # kazoo has no types
    """The request was not sent, because there is no connection."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Threads of kazoo, and connections that are given up early."""

    def __init__(self, attempt_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._attempt_timeout_s = attempt_timeout_s
        self._tls = tls
        self.tls_error = ""
        """The error of the last TLS handshake; "" for none."""

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, **_: object
    ) -> socket.socket:
        """Connect to a server."""
        plain = socket.create_connection(address, self._attempt_timeout_s)
        if self._tls is None:
            return plain
        try:
            self.tls_error = ""
            return self._tls.wrap_socket(plain, server_hostname=hostname)
        except OSError as error:
            self.tls_error = str(error)
            plain.close()
            raise


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """The connection of a session, one server after the other."""

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """Send a request that begins a connection."""
        return super()._invoke(min(timeout, self.client.attempt_timeout_s), request, xid)

    def _connect(self, *args: Any) -> tuple[float, float]:
        """Begin or continue the session; return the time-outs of reads and writes in milliseconds."""
        read_timeout, connect_timeout = super()._connect(*args)
        self.client.session_timeout_ms = int(read_timeout * 1.5)
        return read_timeout / 2, min(connect_timeout, read_timeout / 2)

    def _authenticate_with_sasl(self, *args: Any) -> None:
        """Authenticate. If the server refuses that, the session ends; kazoo by itself would end its thread."""
        try:
            super()._authenticate_with_sasl(*args)
        except (SessionClosedRequireSaslError, SASLException) as error:
            raise AuthFailedError(str(error)) from error


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """One ZooKeeper session. Its callbacks run in threads of kazoo."""

    def __init__(self, settings: ZooKeeperSettings, listener: Callable[[str], object]) -> None:
        """Prepare a session, which `start_async` begins.

        Args:
            settings: How to reach ZooKeeper.
            listener: Called with CONNECTED, SUSPENDED or LOST.
        """
        self.attempt_timeout_s = settings.attempt_timeout_s
        """The time after which another server is tried, in seconds."""
        self.session_timeout_ms = settings.session_timeout_ms
        """The time-out of the session in milliseconds, as the servers have chosen it."""
        tls = None if settings.tls is None else tls_context(settings.tls)
        sasl = None
        if settings.sasl_user is not None:
            sasl = {
                "mechanism": "DIGEST-MD5",
                "username": settings.sasl_user,
                "password": settings.sasl_password,
            }
        super().__init__(
            settings.connect,
            timeout=settings.session_timeout_ms / 1000,
            handler=_Handler(settings.attempt_timeout_s, tls),
            default_acl=CREATOR_ALL_ACL if settings.set_acl else OPEN_ACL_UNSAFE,
            auth_data=[("digest", settings.digest)] if settings.digest is not None else None,
            sasl_options=sasl,
            connection_retry=KazooRetry(
                max_tries=-1, delay=_RETRY_DELAY_S, max_delay=_RETRY_DELAY_LIMIT_S
            ),
            logger=_LOGGER,
        )
        self._connection = _Connection(
            self, self._conn_retry.copy(), logger=_LOGGER, sasl_options=sasl
        )
        self.add_listener(listener)

    @property
    def call_timeout_s(self) -> float:
        """The time after which a call has failed and its server is given up, in seconds: a third of the session."""
        return self.session_timeout_ms / _SHARE_OF_A_CALL / 1000

    @property
    def tls_error(self) -> str:
        """The error of the last TLS handshake; "" for none."""
        return str(self.handler.tls_error)

    @property
    def number(self) -> int:
        """The id of the session; 0 before it begins."""
        return int(self._session_id or 0)

    @property
    def key(self) -> SessionKey:
        """The id and the password of the session."""
        return SessionKey(self.number, bytes(self._session_passwd))

    def send(self, request: Any) -> Any:
        """Send a request, and return the result of kazoo that will have the response."""
        result = self.handler.async_result()
        self._call(request, result)
        return result

    def _call(self, request: Any, async_object: Any) -> bool | None:
        """Queue a request if there is a connection. Otherwise the request fails, and is never sent."""
        if self._state != KeeperState.CONNECTED:
            async_object.set_exception(NotSent())
            return False
        return super()._call(request, async_object)  # type: ignore[no-any-return]  # kazoo has no types

    def drop(self) -> None:
        """Break the connection, because its server does not respond. Another one is tried."""
        connection = self._connection._socket  # noqa: SLF001 - kazoo has no other way
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
