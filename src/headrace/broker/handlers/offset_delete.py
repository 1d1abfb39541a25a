"""OffsetDelete (API key 47), versions 0-0.

Behaviour: The request deletes the committed offsets of partitions. The deletion is durable before the response is sent.
A topic to which members of the group are subscribed is GROUP_SUBSCRIBED_TO_TOPIC. A partition that does not exist is
UNKNOWN_TOPIC_OR_PARTITION. A partition without a committed offset is no error. A group with members that do not use the
protocol type "consumer" is NON_EMPTY_GROUP. A group that does not exist is GROUP_ID_NOT_FOUND, and an empty name
INVALID_GROUP_ID.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.bounds.request_pieces import OFFSETS_A_PIECE, in_pieces, is_long
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.OFFSET_DELETE
VERSIONS: Final = VersionRange(0, 0)


def handle(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> Reply[OffsetDeleteResponse] | Work[OffsetDeleteResponse]:
    """Delete committed offsets of a group."""
    if is_long(request.topics):
        return _delete_in_steps(services, context, request)
    return _delete(services, context, request)


def _delete_in_steps(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> Work[OffsetDeleteResponse]:
    replies: list[Reply[OffsetDeleteResponse]] = []
    for topics in in_pieces(request.topics):
        some = OffsetDeleteRequest(group_id=request.group_id, topics=topics)
        replies.append(_delete(services, context, some))
        yield OFFSETS_A_PIECE * ENTRY_COST
    found: list[OffsetDeleteResponseTopic] = []
    for answer in (yield from value_of(gather(replies))):
        if answer.error_code:
            return answer
        found += answer.topics
    return OffsetDeleteResponse(topics=_merged(found))


def _delete(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> Reply[OffsetDeleteResponse]:
    if not services.permissions.allows(
        context, Operation.DELETE, ResourceType.GROUP, request.group_id
    ):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    accepted: list[OffsetDeleteRequestTopic] = []
    refusals: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        count, code = _partitions_count(services, context, topic.name)
        indexes = [partition.partition_index for partition in topic.partitions]
        refused = [
            OffsetDeleteResponsePartition(partition_index=index, error_code=code)
            for index in indexes
            if not 0 <= index < count
        ]
        if refused:
            refusals.append(OffsetDeleteResponseTopic(name=topic.name, partitions=refused))
        partitions = [part for part in topic.partitions if 0 <= part.partition_index < count]
        if partitions:
            accepted.append(OffsetDeleteRequestTopic(name=topic.name, partitions=partitions))

    def complete(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if not response.error_code:
            response.topics = _merged([*response.topics, *refusals])
        return response

    permitted = OffsetDeleteRequest(group_id=request.group_id, topics=accepted)
    reply = services.groups.delete_offsets(permitted, context.now_ms)
    return reply.map(complete) if isinstance(reply, Deferred) else complete(reply)


def _partitions_count(
    services: Services, context: RequestContext, name: str
) -> tuple[int, ErrorCode]:
    """Return how many partitions of a topic the client may use, and the error code for any other partition."""
    if not services.permissions.allows(context, Operation.READ, ResourceType.TOPIC, name):
        return 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = services.topics.get(name)
    count = 0 if topic is None else topic.partitions_count
    return count, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _merged(topics: list[OffsetDeleteResponseTopic]) -> list[OffsetDeleteResponseTopic]:
    """Return one topic for each name: clients index the topics by name."""
    merged: dict[str, OffsetDeleteResponseTopic] = {}
    for topic in topics:
        if topic.name in merged:
            merged[topic.name].partitions += topic.partitions
        else:
            merged[topic.name] = topic
    return list(merged.values())
