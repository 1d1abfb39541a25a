"""SaslHandshake (API key 17), versions 0-1.

Behaviour:
* The request begins SASL authentication on a listener with SASL. The mechanism must be in sasl.enabled.mechanisms,
  which can be set for each listener.
* PLAIN is offered on encrypted connections, to clients on the same machine, and with
  headrace.sasl.plain.allow.plaintext.
* Any other mechanism is UNSUPPORTED_SASL_MECHANISM: the response lists the offered mechanisms, is sent after
  connection.failed.authentication.delay.ms, and the broker closes the connection.
* On an authenticated connection the request begins re-authentication (KIP-368). Mechanism and user must be the same,
  and the last authentication must be more than a second ago.
* On a listener without SASL the error is ILLEGAL_SASL_STATE.
Not implemented: GSSAPI, delegation tokens.
Versions: After v0 the client sends tokens as frames without a header, after v1 in SaslAuthenticate.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.deferred import Deferred
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
