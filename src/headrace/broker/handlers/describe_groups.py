"""DescribeGroups (API key 15), versions 0-6.

Behaviour: classic groups. Any other, and one that does not exist, has the state "Dead" and no error, from v6 on the
error GROUP_ID_NOT_FOUND; one that has only a configuration is "Empty".
Metadata of members is shown in Stable only. Authorized operations, where asked for, are those of the client.
Versions: v3 authorized operations; v4 group instance ids; v5 flexible; v6 GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorized_operations import authorized_operations
from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.core.coordinator.group.classic import CONSUMER_PROTOCOL_TYPE
from headrace.core.coordinator.group.states import GroupState
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.DESCRIBE_GROUPS
VERSIONS: Final = VersionRange(0, 6)

_NOT_FOUND_VERSION: Final = 6


def handle(
    broker: Broker, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse | Deferred[DescribeGroupsResponse]:
    """Describe groups by id."""
    may = partial(allows, broker, context, Operation.DESCRIBE, ResourceType.GROUP)
    allowed: list[str] = []
    refused: list[str] = []
    for group_id in request.groups:
        (allowed if may(group_id) else refused).append(group_id)
    reply = broker.groups.describe_groups(allowed, context.now_ms)

    def response(groups: list[DescribedGroup]) -> DescribeGroupsResponse:
        for group in groups:
            if group.group_state == GroupState.DEAD.value and broker.group_settings.is_attached(
                group.group_id
            ):
                group.group_state = GroupState.EMPTY.value
                group.protocol_type = CONSUMER_PROTOCOL_TYPE
            elif (
                group.group_state == GroupState.DEAD.value
                and context.header.api_version >= _NOT_FOUND_VERSION
            ):
                what = (
                    "is not a classic group"
                    if broker.groups.exists(group.group_id)
                    else "not found"
                )
                group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                group.error_message = f"Group {group.group_id} {what}."
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = authorized_operations(
                        broker, context, ResourceType.GROUP, group.group_id
                    )
        denials = [
            DescribedGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id)
            for group_id in refused
        ]
        return DescribeGroupsResponse(groups=[*denials, *groups])

    return reply.map(response) if isinstance(reply, Deferred) else response(reply)
