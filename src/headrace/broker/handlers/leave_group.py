"""LeaveGroup (API key 13), versions 0-5.

Behaviour:
* The request removes one member (up to v2) or several members (from v3 on). Each member has an error code of its own,
  and one rebalance follows for all. A static member may be named by its instance id alone.
* A request whose tagged field 26738 names a member removes no member: the responses to that member's heartbeats make it
  stop, and the tagged field 26738 of the response has the progress (docs/reference/client-protocol-kip848.md). The
  client repeats the request until the member has stopped.
Versions: v3 member list (KIP-345); v4 flexible; v5 reason, which is ignored.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.LEAVE_GROUP
VERSIONS: Final = VersionRange(0, 5)

_MEMBER_LIST_VERSION: Final = 3


def handle(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Deferred[LeaveGroupResponse]:
    """Remove members of a group."""
    if not services.permissions.allows(
        context, Operation.READ, ResourceType.GROUP, request.group_id
    ):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if request.headrace_stop is not None:
        return services.groups.stop_member(request.group_id, request.headrace_stop, context.now_ms)
    if context.header.api_version >= _MEMBER_LIST_VERSION:
        return services.groups.leave_group(request.group_id, request.members, context.now_ms)
    leaving = [MemberIdentity(member_id=request.member_id)]
    reply = services.groups.leave_group(request.group_id, leaving, context.now_ms)
    return reply.map(_of_one_member) if isinstance(reply, Deferred) else _of_one_member(reply)


def _of_one_member(response: LeaveGroupResponse) -> LeaveGroupResponse:
    """Return the member's error as the error of the request: these versions have no member list."""
    codes = [response.error_code, *(member.error_code for member in response.members)]
    return LeaveGroupResponse(error_code=next((code for code in codes if code), 0))
