"""OffsetDelete (API key 47), versions 0-0.

Behaviour: forgets what a group has committed for partitions; that is durable before the answer. Topics that members
of the group are subscribed to are refused with GROUP_SUBSCRIBED_TO_TOPIC, topics that do not exist with
UNKNOWN_TOPIC_OR_PARTITION; partitions without a committed offset are no error. A group with members whose protocol is
not the consumers' own is NON_EMPTY_GROUP, one that does not exist GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.context import RequestContext, VersionRange
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

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.OFFSET_DELETE
VERSIONS: Final = VersionRange(0, 0)


def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Deferred[OffsetDeleteResponse]:
    """Delete committed offsets."""
    unknown = [_unknown(topic) for topic in request.topics if broker.topics.get(topic.name) is None]
    request.topics = [
        topic for topic in request.topics if broker.topics.get(topic.name) is not None
    ]

    def complete(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if not response.error_code:
            response.topics += unknown
        return response

    reply = broker.groups.delete_offsets(request, context.now_ms)
    return reply.map(complete) if isinstance(reply, Deferred) else complete(reply)


def _unknown(topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(
                partition_index=partition.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
            for partition in topic.partitions
        ],
    )
