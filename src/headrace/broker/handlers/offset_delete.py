"""OffsetDelete (API key 47), versions 0-0.

Behaviour: forgets what a group has committed for partitions; that is durable before the answer. Topics that members
of the group are subscribed to are refused with GROUP_SUBSCRIBED_TO_TOPIC, partitions that do not exist with
UNKNOWN_TOPIC_OR_PARTITION; those without a committed offset are no error. A group with members whose protocol is
not the consumers' own is NON_EMPTY_GROUP, one that does not exist GROUP_ID_NOT_FOUND, an empty name INVALID_GROUP_ID.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.broker.offset_pieces import OFFSETS_A_PIECE, in_pieces, is_long
from headrace.broker.steps import ENTRY_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.OFFSET_DELETE
VERSIONS: Final = VersionRange(0, 0)


def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> Reply[OffsetDeleteResponse] | Work[OffsetDeleteResponse]:
    """Delete committed offsets."""
    if is_long(request.topics):
        return _delete_in_steps(broker, context, request)
    return _delete(broker, context, request)


def _delete_in_steps(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> Work[OffsetDeleteResponse]:
    replies: list[Reply[OffsetDeleteResponse]] = []
    for topics in in_pieces(request.topics):
        some = OffsetDeleteRequest(group_id=request.group_id, topics=topics)
        replies.append(_delete(broker, context, some))
        yield OFFSETS_A_PIECE * ENTRY_COST
    found: list[OffsetDeleteResponseTopic] = []
    for answer in (yield from value_of(gather(replies))):
        if answer.error_code:
            return answer
        found += answer.topics
    return OffsetDeleteResponse(topics=_merged(found))


def _delete(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> Reply[OffsetDeleteResponse]:
    if not allows(broker, context, Operation.DELETE, ResourceType.GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    refusals = [
        OffsetDeleteResponseTopic(name=topic.name, partitions=refused)
        for topic in request.topics
        if (refused := _take_refused(broker, context, topic))
    ]
    request.topics = [topic for topic in request.topics if topic.partitions]

    def complete(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if not response.error_code:
            response.topics = _merged([*response.topics, *refusals])
        return response

    reply = broker.groups.delete_offsets(request, context.now_ms)
    return reply.map(complete) if isinstance(reply, Deferred) else complete(reply)


def _take_refused(
    broker: Broker, context: RequestContext, topic: OffsetDeleteRequestTopic
) -> list[OffsetDeleteResponsePartition]:
    """Take the partitions that do not exist, or are not permitted, out of a request, and return the answers to them."""
    if allows(broker, context, Operation.READ, ResourceType.TOPIC, topic.name):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        known = broker.topics.get(topic.name)
        count = 0 if known is None else len(known.partitions)
    else:
        code, count = ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0
    asked = [partition.partition_index for partition in topic.partitions]
    topic.partitions = [p for p in topic.partitions if 0 <= p.partition_index < count]
    return [
        OffsetDeleteResponsePartition(partition_index=index, error_code=code)
        for index in asked
        if not 0 <= index < count
    ]


def _merged(topics: list[OffsetDeleteResponseTopic]) -> list[OffsetDeleteResponseTopic]:
    """Return one topic for each name: clients make a map of them."""
    merged: dict[str, OffsetDeleteResponseTopic] = {}
    for topic in topics:
        if topic.name in merged:
            merged[topic.name].partitions += topic.partitions
        else:
            merged[topic.name] = topic
    return list(merged.values())
