"""SaslAuthenticate (API key 36), versions 0-2.

Behaviour:
* The request carries a message of the mechanism that SaslHandshake has chosen. The mechanisms are SCRAM-SHA-256 and
  SCRAM-SHA-512 (RFC 5802, RFC 7677), PLAIN (RFC 4616, with the same stored credentials), and OAUTHBEARER (RFC 7628,
  JSON Web Tokens).
* Until the client has authenticated, only ApiVersions and SaslHandshake are allowed besides; any other request closes
  the connection.
* A failure is SASL_AUTHENTICATION_FAILED, with one text for unknown users and wrong passwords. The response is sent
  connection.failed.authentication.delay.ms after the request, and the broker closes the connection.
Versions: v1 the length of the session (connections.max.reauth.ms, or the expiry of a token); a later request closes the
connection; v2 flexible.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from headrace.protocol.versions import VersionRange

API_KEY: Final = ApiKey.SASL_AUTHENTICATE
VERSIONS: Final = VersionRange(0, 2)


def handle(
    services: Services, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | Deferred[Any]:
    """Handle the client's next message."""
    # A copy: the frame's memory is used again while a password is checked in a thread.
    return services.authenticator.authenticate(context, bytes(request.auth_bytes))
