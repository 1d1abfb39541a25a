"""The session of a connection: its listener, its authenticated principal, and the state of its requests."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config.listeners import SecurityProtocol
from headrace.security.mechanisms import SaslServer
from headrace.security.principal import ANONYMOUS, Principal
from headrace.types import NEVER_MS


class SaslExchange:
    """The SASL exchange by which a client authenticates, from SaslHandshake to its last message."""

    __slots__ = ("busy", "failure_audited", "problem", "server")

    def __init__(self, server: SaslServer, problem: str = "") -> None:
        self.server = server
        self.problem = problem
        """The reason why the exchange cannot succeed, whatever the client sends; "" if there is none."""
        self.busy = False
        """Whether another thread is checking a message of the client."""
        self.failure_audited = False
        """Whether the audit log already has an entry for the failure."""


class Session:
    """A connection, as the broker sees it. The shell makes the session when the connection begins.

    A session of a listener with SASL begins unauthenticated; the `Authenticator` sets `principal` and `authenticated`.
    For mutual TLS the shell names the principal when it makes the session.
    """

    __slots__ = (
        "authenticated",
        "authenticated_ms",
        "busy",
        "client_host",
        "ended",
        "exchange",
        "in_its_thread",
        "is_broker",
        "is_local",
        "listener",
        "mechanism",
        "on_change",
        "on_idle",
        "principal",
        "protocol",
        "raw_tokens",
        "unpaid_us",
        "valid_until_ms",
    )

    def __init__(
        self,
        *,
        listener: str = "PLAINTEXT",
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        client_host: str = "127.0.0.1",
        principal: Principal = ANONYMOUS,
        is_local: bool = False,
        is_broker: bool = False,
    ) -> None:
        """Begin a session.

        Args:
            listener: The name of the listener that accepted the connection.
            protocol: The security protocol of the listener.
            client_host: The address of the client, without the port.
            principal: The principal of the client, if the shell knows it already.
            is_local: Whether the client is in the process of the broker. Such a client is authorized for everything.
            is_broker: Whether a client in the process of the broker is a broker. `Permissions.is_broker` decides for
                all clients. Only a broker ends transactions of groups.
        """
        self.listener = listener
        self.protocol = protocol
        self.client_host = client_host
        self.principal = principal
        self.is_local = is_local
        self.is_broker = is_broker
        self.authenticated = not protocol.sasl
        self.authenticated_ms = 0
        """The time of the last SASL authentication; 0 if there was none."""
        self.mechanism = ""
        """The mechanism of the last SASL authentication; "" if there was none."""
        self.valid_until_ms = NEVER_MS if self.authenticated else 0
        """The time until which all requests are allowed; afterwards only requests by which a client authenticates."""
        self.exchange: SaslExchange | None = None
        """The SASL exchange in progress; None if there is none."""
        self.raw_tokens = False
        """Whether frames are SASL tokens instead of requests, as after SaslHandshake version 0."""
        self.unpaid_us = 0
        """The time that the connection has used and that is not charged to a quota yet, in microseconds."""
        self.ended = ""
        """The reason for closing the connection after the requests in flight; "" while it stays open."""
        self.busy = False
        """Whether a request is being handled in steps. The next request of the connection waits for the last step."""
        self.on_idle: Callable[[], object] = _nothing
        """Called when `busy` has become false. The shell sets it."""
        self.in_its_thread: Callable[[Callable[[], object]], object] = _call
        """Calls a function in the thread of the connection. A shell with several threads sets it."""
        self.on_change: Callable[[], object] = _nothing
        """Called when `authenticated` or `raw_tokens` has changed. The shell sets it."""

    def idle(self) -> None:
        """End `busy`: the request that was handled in steps is complete."""
        self.busy = False
        self.on_idle()

    def end(self, on_idle: Callable[[], object]) -> None:
        """Drop the callbacks: the connection is closed.

        Args:
            on_idle: Called when the request that is being handled in steps is complete, or now if there is none.
        """
        self.on_change = _nothing
        if self.busy:
            self.on_idle = on_idle
        else:
            self.on_idle = _nothing
            on_idle()


def _nothing() -> None:
    pass


def _call(function: Callable[[], object]) -> None:
    function()


LOCAL: Session = Session(is_local=True)
"""The session of clients in the process of the broker."""
PEER: Session = Session(is_local=True, is_broker=True)
"""The session of the broker itself, for requests that it would send to another broker."""
