"""What the broker knows of one connection: its listener, and who is at the other end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.config.listeners import SecurityProtocol
from headrace.security.mechanisms import SaslServer
from headrace.security.principal import ANONYMOUS, Principal

NEVER_MS: Final = 1 << 62
"""A time that does not come."""


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
    """One connection, as the broker sees it; the shell makes it when the connection begins.

    A session of a listener with SASL begins unauthenticated. Whoever authenticates it (`sasl_authenticate`) sets
    `principal` and `authenticated`; for mutual TLS the shell names the principal when it makes the session.
    """

    __slots__ = (
        "authenticated",
        "authenticated_ms",
        "busy",
        "client_host",
        "ended",
        "exchange",
        "in_its_thread",
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
    ) -> None:
        """Begin a session.

        Args:
            listener: The name of the listener that accepted the connection.
            protocol: That listener's security protocol.
            client_host: The other end's address, without the port.
            principal: Who is there, as far as is known now.
            is_local: Whether the client is the program that holds the broker: it may do everything.
        """
        self.listener = listener
        self.protocol = protocol
        self.client_host = client_host
        self.principal = principal
        self.is_local = is_local
        self.authenticated = not protocol.sasl
        self.authenticated_ms = 0
        """When it was authenticated last by SASL."""
        self.mechanism = ""
        """The SASL mechanism by which it was."""
        self.valid_until_ms = NEVER_MS if self.authenticated else 0
        """Until when any request is allowed; after that only those by which a client authenticates."""
        self.exchange: SaslExchange | None = None
        """The SASL exchange that is under way."""
        self.raw_tokens = False
        """Whether frames are SASL tokens and no requests: after SaslHandshake version 0."""
        self.unpaid_us = 0
        """Microseconds of the broker's time that the connection has used and that no quota was charged for yet."""
        self.ended = ""
        """Why the connection is to be closed as soon as what is under way has been answered."""
        self.busy = False
        """Whether a request is being answered in steps; the next one of the connection waits for the last step."""
        self.on_idle: Callable[[], object] = _nothing
        """Called when `busy` has become false; the shell's."""
        self.in_its_thread: Callable[[Callable[[], object]], object] = _call
        """Calls a function in the connection's thread; the shell's, where the broker works in other threads, too."""
        self.on_change: Callable[[], object] = _nothing
        """Called when `authenticated` or `raw_tokens` has changed; the shell's."""

    def idle(self) -> None:
        """Take note that the request is done that was answered in steps."""
        self.busy = False
        self.on_idle()

    def end(self, on_idle: Callable[[], object]) -> None:
        """The connection has ended: forget whom to call.

        Args:
            on_idle: Called when the request that is being answered in steps is done, or now if there is none.
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
"""The program that holds the broker."""
