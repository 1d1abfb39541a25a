"""AddPartitionsToTxn (API key 24), versions 0-3.

Behaviour: the transaction begins with the first partitions that are added; the answer waits until that is durable, and
only then does a partition take its batches (KIP-890). All partitions of a request are added or none: what is wrong is
said of the partitions concerned, of the others OPERATION_NOT_ATTEMPTED. The broker's own topics are refused.
Not implemented: v4 and v5, which are for brokers among each other.
Versions: v2 PRODUCER_FENCED; v3 flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.broker.coordinators.transaction_requests import for_version
from headrace.core.coordinator.transaction.producers import Producer
from headrace.core.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from headrace.security.acls import Operation, ResourceType
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.ADD_PARTITIONS_TO_TXN
VERSIONS: Final = VersionRange(0, 3)


def handle(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Deferred[AddPartitionsToTxnResponse]:
    """Add partitions to a transaction."""
    transactional_id = request.v3_and_below_transactional_id
    partitions = [
        TopicPartition(topic.name, index)
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    ]
    may = allows(broker, context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if not may:
        return _answer(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {})
    errors = {
        partition: error
        for partition in partitions
        if (error := _error(broker, context, partition)) is not ErrorCode.NONE
    }
    if errors:
        return _answer(request, ErrorCode.OPERATION_NOT_ATTEMPTED, errors)
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    reply = broker.transactions.coordinator.add_partitions(
        transactional_id, producer, partitions, context.now_ms
    )

    def answer(error: ErrorCode) -> AddPartitionsToTxnResponse:
        return _answer(request, for_version(error, context), {})

    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)


def _error(broker: Broker, context: RequestContext, partition: TopicPartition) -> ErrorCode:
    if not allows(broker, context, Operation.WRITE, ResourceType.TOPIC, partition.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        topic = broker.topics.require(partition.topic)
        topic.partition(partition.partition)
    except ApiError as error:
        return error.code
    return ErrorCode.INVALID_TOPIC_EXCEPTION if topic.is_internal else ErrorCode.NONE


def _answer(
    request: AddPartitionsToTxnRequest,
    error: ErrorCode,
    errors: Mapping[TopicPartition, ErrorCode],
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=errors.get(TopicPartition(topic.name, index), error),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )
