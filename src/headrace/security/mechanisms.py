"""The interface of SASL mechanisms: one object for each side of an exchange.

An exchange uses no sockets, no clock and no random numbers: the caller passes the nonces. The messages of the other
side may be hostile. Every fault in a message raises a `SaslError`, and no other exception.
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
    """An exchange has failed. The message never contains a password, a token or a key."""


class SaslClient(Protocol):
    """The client side of one exchange."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name, for SaslHandshake."""

    @property
    def done(self) -> bool:
        """Whether the exchange is complete, and the server has proved what the mechanism requires."""

    def first(self) -> bytes:
        """Return the first message to the server."""

    def step(self, challenge: bytes) -> bytes | None:
        """Read the server's message. Return the next message; None if the exchange needs no further message.

        Raises:
            SaslError: The server's message is wrong, or the server refuses the client.
        """


class SaslServer(Protocol):
    """The server side of one exchange."""

    @property
    def mechanism(self) -> str:
        """The name of the mechanism in SASL."""

    @property
    def costly(self) -> bool:
        """Whether `step` computes for milliseconds, so that it should run in a thread."""

    @property
    def done(self) -> bool:
        """Whether the client has proved that it is `user`."""

    @property
    def user(self) -> str:
        """The user name of the client.

        Until `done`, it is the name that the client claims, or "" if there is none yet.
        """

    @property
    def expires_ms(self) -> int | None:
        """The time at which the client's proof expires, in milliseconds since 1970; None if it does not expire."""

    def step(self, response: bytes) -> bytes:
        """Read the client's message, and return the response.

        Raises:
            SaslError: The client is not authenticated. The message is the reason, for the log only.
        """


def utf8(message: bytes, what: str, limit: int) -> str:
    """Decode a message as UTF-8.

    Raises:
        SaslError: The message is too long or not UTF-8.
    """
    if len(message) > limit:
        raise SaslError(f"{what} of {len(message)} bytes (at most {limit})")
    try:
        return message.decode()
    except UnicodeDecodeError:
        # No cause: it would contain the bytes, which can include a password.
        raise SaslError(f"{what} is not UTF-8") from None


def base64_of(text: str, what: str) -> bytes:
    """Decode a text in base64.

    Raises:
        SaslError: The text is not base64.
    """
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise SaslError(f"{what} is not base64") from None
