"""DescribeGroups (API key 15), versions 0-6.

Behaviour: The response describes classic groups. Other groups, and groups that do not exist, have the state "Dead": up
to v5 without an error, from v6 on with GROUP_ID_NOT_FOUND. A group that has only a configuration is "Empty". A group
that the request names twice is described once. When the described groups have 16 MiB together, further groups are
COORDINATOR_LOAD_IN_PROGRESS, and clients retry. The metadata of members is returned in the state Stable only.
Authorized operations, if requested, are the operations of the client.
Versions: v3 authorized operations; v4 group instance ids; v5 flexible; v6 GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.authorized_operations import (
    OPERATIONS_COST,
    authorized_operations,
)
from headrace.broker.bounds.response_bounds import within_bounds
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, GROUP_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.coordinator.state.classic_group import CONSUMER_PROTOCOL_TYPE
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_GROUPS
VERSIONS: Final = VersionRange(0, 6)

_NOT_FOUND_VERSION: Final = 6
_MEMBER_BYTES: Final = 100
"""The size of a member in the response without its metadata and assignment, in bytes."""


def handle(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> Work[DescribeGroupsResponse]:
    """Describe groups by id."""
    denials: list[DescribedGroup] = []
    replies: list[Reply[list[DescribedGroup]]] = []
    for group_id in dict.fromkeys(request.groups):
        if services.permissions.allows(context, Operation.DESCRIBE, ResourceType.GROUP, group_id):
            replies.append(services.groups.describe_groups([group_id], context.now_ms))
        else:
            denials.append(_failed(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id))
        yield GROUP_COST
    described: list[list[DescribedGroup]] = yield from value_of(gather(replies))
    groups: list[DescribedGroup] = []
    for group in within_bounds((group for (group,) in described), _size, _put_off):
        if group.group_state == GroupState.DEAD.value:
            _complete(services, context, group)
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = authorized_operations(
                services.permissions, context, ResourceType.GROUP, group.group_id
            )
            yield OPERATIONS_COST
        groups.append(group)
        yield ENTRY_COST + len(group.members) * ENTRY_COST // 10
    return DescribeGroupsResponse(groups=[*denials, *groups])


def _complete(services: Services, context: RequestContext, group: DescribedGroup) -> None:
    """Return the description of a group that is not classic, or does not exist."""
    if services.group_settings.is_attached(group.group_id):
        group.group_state = GroupState.EMPTY.value
        group.protocol_type = CONSUMER_PROTOCOL_TYPE
    elif context.header.api_version >= _NOT_FOUND_VERSION:
        what = "is not a classic group" if services.groups.exists(group.group_id) else "not found"
        group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        group.error_message = f"Group {group.group_id} {what}."


def _size(group: DescribedGroup) -> int:
    return sum(
        len(member.member_metadata) + len(member.member_assignment) + _MEMBER_BYTES
        for member in group.members
    )


def _put_off(group: DescribedGroup) -> DescribedGroup:
    return _failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, group.group_id)


def _failed(error: ErrorCode, group_id: str) -> DescribedGroup:
    return DescribedGroup(error_code=error, group_id=group_id)
