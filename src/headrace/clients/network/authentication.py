"""One SASL exchange with a broker: SaslHandshake version 1, then SaslAuthenticate until the mechanism is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.errors import AuthenticationError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.protocol.versions import VersionRange
from headrace.security.mechanisms import SaslClient, SaslError

HANDSHAKE_VERSION: Final = 1
"""The version of SaslHandshake. After version 0 the tokens would have no frames of requests, and a broker that refuses
the login could not return a reason."""


class SaslLogin:
    """One SASL exchange: the next request of a login. The connection sends it."""

    def __init__(self, client: SaslClient, peer: str) -> None:
        self.session_lifetime_ms = 0
        """Milliseconds for which the broker accepts this login. 0 is without limit."""
        self._client = client
        self._peer = peer

    def begin(self, versions: Mapping[int, VersionRange]) -> SaslHandshakeRequest:
        """Return the first request.

        Raises:
            AuthenticationError: The broker does not support SASL, or only the version without reasons.
        """
        handshake = versions.get(ApiKey.SASL_HANDSHAKE)
        if handshake is None:
            raise AuthenticationError(f"{self._peer} does not support SASL: {_WITHOUT_SASL}")
        if handshake.max < HANDSHAKE_VERSION or ApiKey.SASL_AUTHENTICATE not in versions:
            raise AuthenticationError(
                f"{self._peer} is too old for a login: it does not support SaslAuthenticate (Kafka 1.0 does)"
            )
        return SaslHandshakeRequest(mechanism=self._client.mechanism)

    def agreed(self, response: SaslHandshakeResponse) -> SaslAuthenticateRequest:
        """Handle the response to SaslHandshake; return the first message of the mechanism.

        Raises:
            AuthenticationError: The broker does not support the mechanism, or SASL on this listener.
        """
        mechanism = self._client.mechanism
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(
                f"{self._peer} does not use SASL on this listener: {_WITHOUT_SASL}"
            )
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(map(_printable, response.mechanisms)) or "none"
            raise AuthenticationError(
                f"{self._peer} does not offer {mechanism}; set sasl.mechanism to one of: {offered}"
            )
        if response.error_code:
            code = ErrorCode(response.error_code)
            raise AuthenticationError(f"{self._peer} refuses {mechanism}: {code.name}")
        return SaslAuthenticateRequest(auth_bytes=self._client.first())

    def answered(self, response: SaslAuthenticateResponse) -> SaslAuthenticateRequest | None:
        """Handle the response to SaslAuthenticate; return the next message, or None if the exchange is complete.

        Raises:
            AuthenticationError: The broker refuses the credentials, or does not prove that it knows them.
        """
        client = self._client
        if response.error_code:
            text = response.error_message or ErrorCode(response.error_code).description
            raise AuthenticationError(f"{self._peer} refuses the login: {_printable(text)}")
        try:
            message = client.step(bytes(response.auth_bytes))
        except SaslError as error:
            text = f"{client.mechanism} with {self._peer} failed: {error}"
            raise AuthenticationError(text) from None
        if message is not None:
            return SaslAuthenticateRequest(auth_bytes=message)
        if not client.done:
            raise AuthenticationError(f"{client.mechanism} with {self._peer} ended too early")
        self.session_lifetime_ms = response.session_lifetime_ms
        return None


_WITHOUT_SASL: Final = "set security.protocol=PLAINTEXT or SSL, or use the port of another listener"


def _printable(text: str) -> str:
    """Return a text from the broker on one line, with at most 300 characters."""
    return "".join(char if char.isprintable() else "?" for char in text[:300])
