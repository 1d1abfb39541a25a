"""What the broker knows of one connection: its listener, and who is at the other end."""

from __future__ import annotations

from headrace.config.listeners import SecurityProtocol
from headrace.security.principal import ANONYMOUS, Principal


class Session:
    """One connection, as the broker sees it; the shell makes it when the connection begins.

    A session of a listener with SASL begins unauthenticated. Whoever authenticates it (`sasl_authenticate`) sets
    `principal` and `authenticated`; for mutual TLS the shell names the principal when it makes the session.
    """

    __slots__ = (
        "authenticated",
        "client_host",
        "is_local",
        "listener",
        "principal",
        "protocol",
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


LOCAL: Session = Session(is_local=True)
"""The program that holds the broker."""
