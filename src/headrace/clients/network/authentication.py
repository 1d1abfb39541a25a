"""One SASL exchange with a broker: SaslHandshake 1, then SaslAuthenticate until both sides have said everything."""

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
"""After version 0 the exchange would go on in bare tokens, and the broker could not say why it refuses."""


class SaslExchange:
    """One SASL exchange: the next request of a login. The connection sends it."""

    def __init__(self, client: SaslClient, peer: str) -> None:
        self.session_lifetime_ms = 0
        """How long the broker takes us for who we are; 0 is for ever."""
        self._client = client
        self._peer = peer

    def begin(self, versions: Mapping[int, VersionRange]) -> SaslHandshakeRequest:
        """Return the first request.

        Raises:
            AuthenticationError: The broker cannot be asked.
        """
        handshake = versions.get(ApiKey.SASL_HANDSHAKE)
        if handshake is None:
            raise AuthenticationError(f"{self._peer} offers no SASL: {_WITHOUT_SASL}")
        if handshake.max < HANDSHAKE_VERSION or ApiKey.SASL_AUTHENTICATE not in versions:
            raise AuthenticationError(
                f"{self._peer} is too old to log in to: it offers no SaslAuthenticate (Kafka 1.0 does)"
            )
        return SaslHandshakeRequest(mechanism=self._client.mechanism)

    def agreed(self, response: SaslHandshakeResponse) -> SaslAuthenticateRequest:
        """Take the broker's word on the mechanism; return the first message of the mechanism.

        Raises:
            AuthenticationError: The broker does not offer it.
        """
        mechanism = self._client.mechanism
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(f"{self._peer} wants no SASL here: {_WITHOUT_SASL}")
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
        """Take the broker's answer; return the next message, None when the exchange is complete.

        Raises:
            AuthenticationError: The broker refuses us, or does not prove that it knows us.
        """
        client = self._client
        if response.error_code:
            text = response.error_message or ErrorCode(response.error_code).description
            raise AuthenticationError(f"{self._peer} refuses to log us in: {_printable(text)}")
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
    """Return what a broker says in one line of a bounded length."""
    return "".join(char if char.isprintable() else "?" for char in text[:300])
