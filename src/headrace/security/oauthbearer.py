"""SASL OAUTHBEARER (RFC 7628): the client sends a token that an issuer has signed.

    n,,^Aauth=Bearer <token>^A^A

A server that refuses the token sends the reason in a JSON challenge. The client sends one ^A, and the exchange fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from headrace.security.mechanisms import OAUTHBEARER, SaslError, utf8

_MESSAGE_BYTES_LIMIT: Final = 65_536
_SEPARATOR: Final = "\x01"
_ACKNOWLEDGED: Final = b"\x01"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]*")
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'


class TokenIdentity(NamedTuple):
    """The claims of a verified token."""

    user: str
    expires_ms: int


class OAuthBearerClient:
    """The client side of an OAUTHBEARER exchange."""

    mechanism: Final = OAUTHBEARER

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        """Begin an exchange with a valid token.

        Raises:
            SaslError: The token or an extension has characters that the message cannot contain.
        """
        if not _TOKEN.fullmatch(token):
            raise SaslError("the token is empty, or has characters that a bearer token cannot have")
        pairs = ""
        for name, value in (extensions or {}).items():
            allowed = _EXTENSION_NAME.fullmatch(name) and _EXTENSION_VALUE.fullmatch(value)
            if not allowed or name == "auth":
                raise SaslError(f"the SASL extension {name[:40]!r} cannot be sent")
            pairs += f"{name}={value}{_SEPARATOR}"
        self._message = f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{pairs}{_SEPARATOR}"
        self._refused = ""
        self.done = False

    def first(self) -> bytes:
        """Return the message with the token."""
        return self._message.encode()

    def step(self, challenge: bytes) -> bytes | None:
        """Read the server's message. It is empty if the server accepts the token, and otherwise has the reasons.

        Reasons need an acknowledgement, which is the return value.

        Raises:
            SaslError: The server accepts a token that it has refused.
        """
        if self._refused:
            raise SaslError(f"the server refuses the token: {self._refused}")
        if challenge:
            self._refused = ascii(challenge[:200].decode("ascii", "replace"))
            return _ACKNOWLEDGED
        self.done = True
        return None


class OAuthBearerServer:
    """The server side of an OAUTHBEARER exchange."""

    mechanism: Final = OAUTHBEARER
    costly: Final = False

    def __init__(self, verify: Callable[[str], TokenIdentity]) -> None:
        """Begin an exchange. `verify` returns the identity in a token, or raises SaslError."""
        self._verify = verify
        self.refusal: SaslError | None = None
        """The reason why the token is refused; None if it is not. The client gets it in a challenge that it may never
        acknowledge."""
        self.done = False
        self.user = ""
        self.expires_ms: int | None = None

    def step(self, response: bytes) -> bytes:
        """Check the token. A refusal is sent as a challenge, and raised when the client has acknowledged the challenge.

        Raises:
            SaslError: The message is malformed, or the token was refused.
        """
        if self.refusal is not None:
            raise self.refusal
        authorization_id, token = parse_client_message(response)
        try:
            identity = self._verify(token)
            if authorization_id not in {"", identity.user}:
                raise SaslError("the client wants to act for another user")  # noqa: TRY301 - reported as the others
        except SaslError as error:
            self.refusal = error
            return _INVALID_TOKEN
        self.user, self.expires_ms = identity
        self.done = True
        return b""


def parse_client_message(message: bytes) -> tuple[str, str]:
    """Return the user that the client wants to act for ("" for none), and the token.

    Raises:
        SaslError: The message is malformed.
    """
    text = utf8(message, "an OAUTHBEARER message", _MESSAGE_BYTES_LIMIT)
    header, *pairs = text.split(_SEPARATOR)
    gs2 = re.fullmatch(r"[ny],(?:a=([^,]*))?,", header)
    if gs2 is None or len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise SaslError("an OAUTHBEARER message that is not n,,^Aauth=...^A^A")
    authorization_id = (gs2[1] or "").replace("=2C", ",").replace("=3D", "=")
    values: dict[str, str] = {}
    for pair in pairs[:-2]:
        name, separator, value = pair.partition("=")
        if not separator or not name or name in values:
            raise SaslError("an OAUTHBEARER message whose parts are not pairs, or not unique")
        values[name] = value
    scheme, _, token = values.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token := token.strip(" ")):
        raise SaslError("an OAUTHBEARER message without a bearer token")
    return authorization_id, token
