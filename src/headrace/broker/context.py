"""What a handler is told besides the request, and the ways out of it that are not a response."""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.session import LOCAL, Session
from headrace.protocol.frame import RequestHeader


class RequestContext(NamedTuple):
    """Where and when a request came in."""

    now_ms: int
    """Wall-clock time in milliseconds since 1970."""
    header: RequestHeader
    client_address: str
    """The other end of the connection, for the journal."""
    listener_host: str
    """The local address of the accepted socket: the address that reached us, so that it can be advertised."""
    listener_port: int
    session: Session = LOCAL
    """The connection: its listener, and who is there."""


class CloseConnection(Exception):  # noqa: N818 - an instruction to the server, not a fault of ours
    """The connection has to be closed without a response."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Endpoint(NamedTuple):
    """An address that clients can connect to."""

    host: str
    port: int


class LatestTime:
    """The time of the latest call of the broker, for work that goes on after the request that began it."""

    __slots__ = ("now_ms",)

    def __init__(self) -> None:
        self.now_ms = 0
        """Milliseconds since 1970; 0 before the first call."""
