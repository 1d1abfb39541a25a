"""Heartbeat (API key 12), versions 0-4.

Behaviour: The request extends the session of a member. REBALANCE_IN_PROGRESS makes the member join again. While the
group is being loaded the response is NONE, because clients take COORDINATOR_LOAD_IN_PROGRESS for fatal here; after
loading, sessions start again. The tagged field 26738 of the response is true for a member that an administrator stops
(docs/reference/client-protocol-kip848.md).
Versions: v3 group instance ids (KIP-345); v4 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.HEARTBEAT
VERSIONS: Final = VersionRange(0, 4)


def handle(
    services: Services, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Deferred[HeartbeatResponse]:
    """Extend the session of a member."""
    if not services.permissions.allows(
        context, Operation.READ, ResourceType.GROUP, request.group_id
    ):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return services.groups.heartbeat(request, context.now_ms)
