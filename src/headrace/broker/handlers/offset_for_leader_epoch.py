"""OffsetForLeaderEpoch (API key 23), versions 2-4.

Behaviour: A consumer uses this request to detect that the log was truncated (KIP-320). The response has the largest
leader epoch up to the requested epoch, and the offset after the last record of that epoch. The end of the current epoch
is the log end offset, for consumers too: the high watermark of a new leader may be below what consumers have read from
the leader before. An epoch newer than the broker's epoch gets -1 for both.
Versions: v3 replica id; v4 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.OFFSET_FOR_LEADER_EPOCH
VERSIONS: Final = VersionRange(2, 4)


def handle(
    services: Services,
    context: RequestContext,
    request: OffsetForLeaderEpochRequest,
) -> Work[OffsetForLeaderEpochResponse]:
    """Find the end of an epoch in every partition."""
    may_replicate = services.permissions.allows(
        context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, quietly=True
    )
    topics = []
    for topic in request.topics:
        visible = may_replicate or services.permissions.allows(
            context, Operation.DESCRIBE, ResourceType.TOPIC, topic.topic
        )
        partitions = []
        for wanted in topic.partitions:
            found = _partition(services, topic.topic, wanted) if visible else _refused(wanted)
            partitions.append(found)
            yield ENTRY_COST
        yield ENTRY_COST
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


def _refused(wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    return EpochEndOffset(
        partition=wanted.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )


def _partition(services: Services, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = services.partitions.require(topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
    except ApiError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    epoch, end_offset = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
