"""ShareGroupHeartbeat (API key 76), versions 1-1.

Behaviour: The response is UNSUPPORTED_VERSION, as from a Kafka broker without share groups: consumers of share groups
(KIP-932) report the error and end. If the broker did not offer this API, consumers of librdkafka would look for the
coordinator for ever and report nothing.
Not implemented: Share groups.
Versions: Only v1 is stable.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.SHARE_GROUP_HEARTBEAT
VERSIONS: Final = VersionRange(1, 1)


def handle(
    services: Services, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    """Refuse a member of a share group."""
    if not services.permissions.allows(
        context, Operation.READ, ResourceType.GROUP, request.group_id
    ):
        return ShareGroupHeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    services.journal.warning("share_group_refused", group=request.group_id)
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message=(
            "This broker has no share groups: use a consumer group, or a worker with ordering by key for more "
            "parallelism."
        ),
    )
