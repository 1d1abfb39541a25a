"""SASL PLAIN (RFC 4616): name and password in one message. It needs an encrypted connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.security.mechanisms import PLAIN, SaslError, utf8

_MESSAGE_BYTES_LIMIT: Final = 8192


class PlainClient:
    """The client side of a PLAIN exchange."""

    mechanism: Final = PLAIN

    def __init__(self, username: str, password: str) -> None:
        """Begin an exchange.

        Raises:
            SaslError: The name or the password is empty or has a NUL character.
        """
        if not username or not password or "\0" in username + password:
            raise SaslError("PLAIN needs a name and a password, both without NUL characters")
        self._message = f"\0{username}\0{password}".encode()
        self.done = False

    def first(self) -> bytes:
        """Return the only message."""
        return self._message

    def step(self, challenge: bytes) -> bytes | None:
        """Read the server's empty message.

        Raises:
            SaslError: The message is not empty.
        """
        if challenge:
            raise SaslError("the server answers PLAIN with a challenge")
        self.done = True
        return None


class PlainServer:
    """The server side of a PLAIN exchange."""

    mechanism: Final = PLAIN
    costly: Final = True
    expires_ms: Final = None

    def __init__(self, is_password: Callable[[str, str], bool]) -> None:
        """Begin an exchange. `is_password(user, password)` must take the same time for users that do not exist."""
        self.is_password: Final = is_password
        self.done = False
        self.user = ""

    def step(self, response: bytes) -> bytes:
        """Check the client's only message.

        Raises:
            SaslError: The message is malformed, names another user to act for, or has a wrong password.
        """
        parts = utf8(response, "a PLAIN message", _MESSAGE_BYTES_LIMIT).split("\0")
        if len(parts) != 3:
            raise SaslError("a PLAIN message that is not of three parts")
        authorization_id, self.user, password = parts
        if not self.user or not password:
            raise SaslError("a PLAIN message without a name or a password")
        if authorization_id not in {"", self.user}:
            raise SaslError("the client wants to act for another user")
        if not self.is_password(self.user, password):
            raise SaslError("unknown user or wrong password")
        self.done = True
        return b""
