"""The context of a request, and the exception that closes a connection."""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.session import LOCAL, Session
from headrace.protocol.frame import RequestHeader


class RequestContext(NamedTuple):
    """The time and the connection of a request."""

    now_ms: int
    """Wall-clock time in milliseconds since 1970."""
    header: RequestHeader
    client_address: str
    """The address of the client with its port, for log events."""
    listener_host: str
    """The local address of the accepted socket. The broker can advertise it, because the client has connected to it."""
    listener_port: int
    session: Session = LOCAL
    """The session of the connection: its listener and its authenticated principal."""
    request_bytes: int = 0
    """The size of the request in bytes; 0 for a request that was not decoded, of a client in this process."""


class CloseConnection(Exception):  # noqa: N818 - an instruction to the server, not an error of the broker
    """The connection has to be closed without a response."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Endpoint(NamedTuple):
    """An address that clients can connect to."""

    host: str
    port: int


class LatestTime:
    """The time of the latest call of the broker. Work that outlasts its request reads the time here."""

    __slots__ = ("now_ms",)

    def __init__(self) -> None:
        self.now_ms = 0
        """Milliseconds since 1970; 0 before the first call."""
