"""DescribeProducers (API key 61), versions 0-0.

Behaviour: The response lists the idempotent and transactional producers that a partition remembers. Each has its id,
epoch, last sequence number, the time of its last append, the epoch of the coordinator that last ended a transaction,
and the first offset of an open transaction. -1 stands for a missing value. Administrators find a hanging transaction in
this way. As in Kafka the client needs the permission READ on the topic. A partition that the request names twice is
described once. When a response has 20,000 producers, further partitions that have producers are NOT_LEADER_OR_FOLLOWER:
admin clients look up the leader and retry.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.replication.partition import Partition
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_PRODUCERS
VERSIONS: Final = VersionRange(0, 0)
_MOST: Final = 20_000
"""The number of producers from which on a response gets no further ones."""


def handle(
    services: Services, context: RequestContext, request: DescribeProducersRequest
) -> Work[DescribeProducersResponse]:
    """Return the producers of every partition."""
    topics: list[TopicResponse] = []
    entries = 0
    # Each topic and partition once, so that the size of the response is bounded.
    for topic in {topic.name: topic for topic in request.topics}.values():
        partitions: list[PartitionResponse] = []
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
        for index in dict.fromkeys(topic.partition_indexes):
            described = _describe(services, context, topic.name, index, is_full=entries >= _MOST)
            partitions.append(described)
            entries += len(described.active_producers)
            yield ENTRY_COST + len(described.active_producers) * ENTRY_COST // 5
    return DescribeProducersResponse(topics=topics)


def _describe(
    services: Services, context: RequestContext, topic: str, index: int, *, is_full: bool
) -> PartitionResponse:
    try:
        services.permissions.authorize(context, Operation.READ, ResourceType.TOPIC, topic)
        partition = services.partitions.require(topic, index)
        if partition.refusal:
            raise partition.refused()
    except ApiError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.message
        )
    if is_full and len(partition.log.producers):
        return PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            error_message=f"an answer has {_MOST} producers: ask again for this partition",
        )
    return PartitionResponse(partition_index=index, active_producers=_producers(partition))


def _producers(partition: Partition) -> list[ProducerState]:
    producers = partition.log.producers
    first_offsets = producers.transactions.open
    return [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_append_ms,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=first_offsets.get(producer_id, -1),
        )
        for producer_id, entry in producers.items()
    ]
