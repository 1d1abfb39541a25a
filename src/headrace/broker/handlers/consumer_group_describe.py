"""ConsumerGroupDescribe (API key 69), versions 0-1.

Behaviour: The response describes groups of the server-side protocol (KIP-848). Any other group is GROUP_ID_NOT_FOUND. A
group is TOPIC_AUTHORIZATION_FAILED as a whole if the client may not describe one of the topics assigned to its members.
A group that the request names twice is described once. When the members of the described groups have 100,000 partitions
together, further groups are COORDINATOR_LOAD_IN_PROGRESS, and clients retry.
Versions: v1 types of members; all members are consumers.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.authorized_operations import (
    OPERATIONS_COST,
    authorized_operations,
)
from headrace.broker.bounds.response_bounds import ANSWER_ENTRIES
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, GROUP_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.CONSUMER_GROUP_DESCRIBE
VERSIONS: Final = VersionRange(0, 1)


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Work[ConsumerGroupDescribeResponse]:
    """Describe groups by id."""
    denials: list[DescribedGroup] = []
    replies: list[Reply[list[DescribedGroup]]] = []
    entries = 0
    for group_id in dict.fromkeys(request.group_ids):
        if not services.permissions.allows(
            context, Operation.DESCRIBE, ResourceType.GROUP, group_id
        ):
            denials.append(_failed(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id))
        elif entries >= ANSWER_ENTRIES:
            denials.append(_failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, group_id))
        else:
            held = services.groups.partitions_assigned(group_id)
            replies.append(services.groups.describe_consumer_groups([group_id], context.now_ms))
            entries += held
            yield held * ENTRY_COST // 10
        yield GROUP_COST
    described: list[list[DescribedGroup]] = yield from value_of(gather(replies))
    groups: list[DescribedGroup] = []
    for (group,) in described:
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = authorized_operations(
                services.permissions, context, ResourceType.GROUP, group.group_id
            )
            yield OPERATIONS_COST
        groups.append((yield from _shown(services, context, group)))
    return ConsumerGroupDescribeResponse(groups=[*denials, *groups])


def _shown(
    services: Services, context: RequestContext, group: DescribedGroup
) -> Work[DescribedGroup]:
    held = {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    visible = True
    for name in sorted(held):
        yield ENTRY_COST
        if not services.permissions.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
            visible = False
            break
    if visible:
        return group
    refused = _failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, group.group_id)
    refused.error_message = (
        "The group has described topic(s) that the client is not authorized to describe."
    )
    return refused


def _failed(error: ErrorCode, group_id: str) -> DescribedGroup:
    return DescribedGroup(error_code=error, group_id=group_id)
