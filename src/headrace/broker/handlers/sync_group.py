"""SyncGroup (API key 14), versions 0-5.

Behaviour: Followers wait for the assignment of the leader. All responses are sent when the assignment is durable. If a
rebalance begins first, followers get REBALANCE_IN_PROGRESS. If the assignment of a leader lacks partitions that were
added, the broker closes the leader's connection, once for each change of topics
(`headrace.core.coordinator.classic.coverage`).
Versions: v3 group instance ids (KIP-345); v4 flexible; v5 protocol type and name, which are required and must be those
of the group (INCONSISTENT_GROUP_PROTOCOL).
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.services import Services
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.SYNC_GROUP
VERSIONS: Final = VersionRange(0, 5)

_PROTOCOL_REQUIRED_VERSION: Final = 5


def handle(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Deferred[SyncGroupResponse]:
    """Store the leader's assignment, or return the member's assignment."""
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.header.api_version >= _PROTOCOL_REQUIRED_VERSION and not names_protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not services.permissions.allows(
        context, Operation.READ, ResourceType.GROUP, request.group_id
    ):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if services.groups.leader_is_outdated(request):
        raise CloseConnection(
            f"the leader of group {request.group_id[:300]!r} assigns by old metadata, without partitions that were "
            "added: clients refresh their metadata when a connection is closed"
        )
    return services.groups.sync_group(request, context.now_ms)
