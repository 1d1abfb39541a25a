"""SaslAuthenticate (API key 36), versions 0-2.

Behaviour: carries the messages of the mechanism that SaslHandshake has chosen: SCRAM-SHA-256 and SCRAM-SHA-512
(RFC 5802, RFC 7677), PLAIN (RFC 4616, checked against the same stored credentials), OAUTHBEARER (RFC 7628, JSON Web
Tokens). Until it has succeeded only ApiVersions and SaslHandshake are allowed besides; any other request closes the
connection. A refusal is SASL_AUTHENTICATION_FAILED with one text for unknown users and wrong passwords, after
connection.failed.authentication.delay.ms counted from the request, and the connection is closed.
Versions: v1 says how long the session lasts (connections.max.reauth.ms, the expiry of a token); a request after that
closes the connection; v2 flexible.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.core.deferred import Deferred
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
    """Take the client's next message."""
    # A copy: the frame's memory is used again while a password is checked in a thread.
    return services.authenticator.authenticate(context, bytes(request.auth_bytes))
