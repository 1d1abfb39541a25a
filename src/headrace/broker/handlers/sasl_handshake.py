"""SaslHandshake (API key 17), versions 0-1.

Behaviour: begins SASL authentication on a listener with SASL by a mechanism of sasl.enabled.mechanisms, which can be
set for a listener. PLAIN is offered on encrypted connections, to clients on the same machine, and with
headrace.sasl.plain.allow.plaintext. With another mechanism the answer is UNSUPPORTED_SASL_MECHANISM with those that
there are, after connection.failed.authentication.delay.ms, and the connection is closed. Again on an authenticated
connection it begins re-authentication (KIP-368), which has to be by the same mechanism and as the same user, and not
within a second of the last. On a listener without SASL: ILLEGAL_SASL_STATE.
Not implemented: GSSAPI, delegation tokens.
Versions: after v0 the client sends tokens as bare frames, after v1 in SaslAuthenticate.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.core.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.protocol.versions import VersionRange

API_KEY: Final = ApiKey.SASL_HANDSHAKE
VERSIONS: Final = VersionRange(0, 1)


def handle(
    services: Services, context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse | Deferred[Any]:
    """Begin a SASL exchange with the chosen mechanism."""
    return services.authenticator.handshake(context, request.mechanism)
