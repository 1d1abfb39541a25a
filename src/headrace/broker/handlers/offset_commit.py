"""OffsetCommit (API key 8), versions 2-9.

Behaviour: Committed offsets are records in `__consumer_offsets`. The response waits until they are durable. Each
partition has an error of its own. Partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION, and the other partitions
are committed. The broker ignores the retention time of v2-4: offsets.retention.minutes decides.
Not implemented: Topic ids (v10).
Versions: v6 leader epochs; v7 group instance ids (KIP-345); v8 flexible; v9 members of consumer groups (KIP-848). With
v9, an epoch other than the member's is STALE_MEMBER_EPOCH, and a missing group GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from typing import Final

from headrace.broker.bounds.request_pieces import OFFSETS_A_PIECE, in_pieces, is_long, joined
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.OFFSET_COMMIT
VERSIONS: Final = VersionRange(2, 9)


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> Reply[OffsetCommitResponse] | Work[OffsetCommitResponse]:
    """Commit the offsets of the request."""
    if is_long(request.topics):
        return _commit_in_steps(services, context, request)
    return _commit(services, context, request)


def _commit_in_steps(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> Work[OffsetCommitResponse]:
    replies: list[Reply[OffsetCommitResponse]] = []
    for topics in in_pieces(request.topics):
        some = copy(request)
        some.topics = topics
        replies.append(_commit(services, context, some))
        yield OFFSETS_A_PIECE * ENTRY_COST
    response = OffsetCommitResponse()
    for answer in (yield from value_of(gather(replies))):
        response.topics = joined(response.topics, answer.topics)
    return response


def _commit(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> Reply[OffsetCommitResponse]:
    wanted = request.topics
    if not services.permissions.allows(
        context, Operation.READ, ResourceType.GROUP, request.group_id
    ):
        return _failed(wanted, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    allowed = [
        topic
        for topic in wanted
        if services.permissions.allows(context, Operation.READ, ResourceType.TOPIC, topic.name)
    ]
    known = [_existing(services, topic) for topic in allowed]
    version = context.header.api_version
    if [topic.partitions for topic in known] == [topic.partitions for topic in wanted]:
        return services.groups.commit_offsets(request, context.now_ms, version=version)
    accepted = copy(request)
    accepted.topics = [topic for topic in known if topic.partitions]
    permitted = frozenset(topic.name for topic in allowed)
    if not accepted.topics:
        return _complete(wanted, permitted, OffsetCommitResponse())
    reply = services.groups.commit_offsets(accepted, context.now_ms, version=version)
    if isinstance(reply, Deferred):
        return reply.map(lambda response: _complete(wanted, permitted, response))
    return _complete(wanted, permitted, reply)


def _existing(services: Services, wanted: OffsetCommitRequestTopic) -> OffsetCommitRequestTopic:
    topic = services.topics.get(wanted.name)
    count = 0 if topic is None else topic.partitions_count
    partitions = [entry for entry in wanted.partitions if 0 <= entry.partition_index < count]
    return OffsetCommitRequestTopic(name=wanted.name, partitions=partitions)


def _complete(
    wanted: list[OffsetCommitRequestTopic],
    permitted: Collection[str],
    response: OffsetCommitResponse,
) -> OffsetCommitResponse:
    """Return the response for all partitions of the request, including those that do not exist or are not permitted."""
    codes = {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }

    def code(topic: str, index: int) -> int:
        if topic not in permitted:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return codes.get((topic, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    return _response(wanted, code)


def _failed(wanted: list[OffsetCommitRequestTopic], error: ErrorCode) -> OffsetCommitResponse:
    return _response(wanted, lambda _topic, _index: error)


def _response(
    wanted: list[OffsetCommitRequestTopic], code: Callable[[str, int], int]
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=code(topic.name, partition.partition_index),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in wanted
        ]
    )
