"""The interface of SASL mechanisms: one object for each side of an exchange, which gets the messages of the other side.

An exchange uses no sockets, no clock and no random numbers: the caller gives it the nonces. The messages of the other
side may be hostile. Every fault in them raises a `SaslError`, and no other exception.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, Protocol

from headrace.errors import HeadraceError

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"


class SaslError(HeadraceError):
    """An exchange has failed. The message never holds a password, a token or a key."""


class SaslClient(Protocol):
    """The client's side of one exchange."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name, for SaslHandshake."""

    @property
    def done(self) -> bool:
        """Whether the exchange is complete and the server has proved what this mechanism has it prove."""

    def first(self) -> bytes:
        """Return the first message."""

    def step(self, challenge: bytes) -> bytes | None:
        """Take the server's answer; return the next message, None when there is nothing left to say.

        Raises:
            SaslError: The server's answer is wrong, or refuses us.
        """


class SaslServer(Protocol):
    """The server's side of one exchange."""

    @property
    def mechanism(self) -> str:
        """The name of the mechanism in SASL."""

    @property
    def costly(self) -> bool:
        """Whether `step` computes for milliseconds, so that it belongs into a thread."""

    @property
    def done(self) -> bool:
        """Whether the client has proved to be `user`."""

    @property
    def user(self) -> str:
        """The user name of the client; until `done` the name that the client claims, "" if that is not known."""

    @property
    def expires_ms(self) -> int | None:
        """When what the client has shown expires, in milliseconds since 1970; None if it does not."""

    def step(self, response: bytes) -> bytes:
        """Take the client's message and return the answer.

        Raises:
            SaslError: The client is not authenticated; its message says why, for the log and not for the client.
        """


def utf8(message: bytes, what: str, limit: int) -> str:
    """Return a message as text.

    Raises:
        SaslError: It is too long, or not UTF-8.
    """
    if len(message) > limit:
        raise SaslError(f"{what} of {len(message)} bytes (at most {limit})")
    try:
        return message.decode()
    except UnicodeDecodeError:
        # Without a cause: that would carry the bytes, which may hold a password.
        raise SaslError(f"{what} is not UTF-8") from None


def base64_of(text: str, what: str) -> bytes:
    """Return what a text of base64 stands for.

    Raises:
        SaslError: It is not base64.
    """
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise SaslError(f"{what} is not base64") from None
