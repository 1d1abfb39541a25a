"""JoinGroup (API key 11), versions 0-9.

Behaviour:
* The classic group protocol; see `headrace.core.coordinator.classic`. The response waits until the join phase is
  complete and the new generation is durable.
* A session timeout outside of group.min.session.timeout.ms and group.max.session.timeout.ms is INVALID_SESSION_TIMEOUT.
  Any protocol type is accepted.
* In a consumer group (KIP-848) with members the response is sent at once, no member leads, and the broker assigns
  partitions. A consumer group without members becomes a classic group.
* The tagged field 26738 of the response is true for a member that waited while an administrator stops it.
Versions: v1 rebalance timeout; v4 new members get MEMBER_ID_REQUIRED and an id first (KIP-394); v5 group instance ids
(KIP-345); v6 flexible; v7 protocol type in the response; v8 reason; v9 skip_assignment for a static leader that
restarted.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.coordinators.group_origin import origin_of
from headrace.broker.services import Services
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.JOIN_GROUP
VERSIONS: Final = VersionRange(0, 9)

_NO_PROTOCOL_VERSION: Final = 7


def handle(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Deferred[JoinGroupResponse]:
    """Add the client to a group of the classic protocol, or let it join again."""
    reply: JoinGroupResponse | Deferred[JoinGroupResponse]
    if services.permissions.allows(context, Operation.READ, ResourceType.GROUP, request.group_id):
        reply = services.groups.join_group(origin_of(context), request, context.now_ms)
    else:
        reply = JoinGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if context.header.api_version < _NO_PROTOCOL_VERSION:
        return reply
    return (
        reply.map(_without_protocol_in_errors)
        if isinstance(reply, Deferred)
        else _without_protocol_in_errors(reply)
    )


def _without_protocol_in_errors(response: JoinGroupResponse) -> JoinGroupResponse:
    if response.error_code != ErrorCode.NONE:
        response.protocol_name = None
    return response
