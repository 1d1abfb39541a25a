"""ConsumerGroupDescribe (API key 69), versions 0-1.

Behaviour: groups of the server-side protocol (KIP-848); for others GROUP_ID_NOT_FOUND. A group whose members hold a
topic that the client may not describe is TOPIC_AUTHORIZATION_FAILED as a whole.
Versions: v1 types of members; all are consumers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorized_operations import authorized_operations
from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.CONSUMER_GROUP_DESCRIBE
VERSIONS: Final = VersionRange(0, 1)


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Deferred[ConsumerGroupDescribeResponse]:
    """Describe groups by id."""
    may = partial(allows, broker, context, Operation.DESCRIBE, ResourceType.GROUP)
    allowed: list[str] = []
    refused: list[str] = []
    for group_id in request.group_ids:
        (allowed if may(group_id) else refused).append(group_id)
    reply = broker.groups.describe_consumer_groups(allowed, context.now_ms)

    def response(groups: list[DescribedGroup]) -> ConsumerGroupDescribeResponse:
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
        shown = [_shown(broker, context, group) for group in groups]
        return ConsumerGroupDescribeResponse(groups=[*denials, *shown])

    return reply.map(response) if isinstance(reply, Deferred) else response(reply)


def _shown(broker: Broker, context: RequestContext, group: DescribedGroup) -> DescribedGroup:
    held = {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    may = partial(allows, broker, context, Operation.DESCRIBE, ResourceType.TOPIC)
    if all(may(name) for name in sorted(held)):
        return group
    return DescribedGroup(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The group has described topic(s) that the client is not authorized to describe.",
        group_id=group.group_id,
    )
