"""AddPartitionsToTxn (API key 24), versions 0-5.

Behaviour: the transaction begins with the first partitions that are added; the answer waits until that is durable, and
only then does a partition take its batches (KIP-890). All partitions of a request are added or none: what is wrong is
said of the partitions concerned, of the others OPERATION_NOT_ATTEMPTED. The broker's own topics are refused.
From v4 on it is for brokers among each other, who have the right to act for the cluster: several transactions, each to
be added to, as by a Produce 12, or only asked whether it has its partitions; the broker itself does not come this way.
Versions: v2 PRODUCER_FENCED; v3 flexible; v4 several transactions, verification (KIP-890); v5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.requests.transaction_requests import for_version
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, GROUP_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.coordinator.transaction.producers import Producer
from headrace.core.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType
from headrace.types import TopicPartition

API_KEY: Final = ApiKey.ADD_PARTITIONS_TO_TXN
VERSIONS: Final = VersionRange(0, 5)

_BROKERS_VERSION: Final = 4
_ABORTABLE_VERSION: Final = 5


def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Work[Reply[AddPartitionsToTxnResponse]]:
    """Add partitions to a transaction, or to several."""
    if context.header.api_version >= _BROKERS_VERSION:
        return (yield from _handle_brokers(services, context, request))
    transactional_id = request.v3_and_below_transactional_id
    partitions = [
        TopicPartition(topic.name, index)
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    ]
    may = services.permissions.allows(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )
    if not may:
        return _clients_answer(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {})
    errors: dict[TopicPartition, ErrorCode] = {}
    for partition in partitions:
        error = _error(services, context, partition)
        if error is not ErrorCode.NONE:
            errors[partition] = error
        yield ENTRY_COST
    if errors:
        return _clients_answer(request, ErrorCode.OPERATION_NOT_ATTEMPTED, errors)
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    reply = services.transactions.coordinator.add_partitions(
        transactional_id, producer, partitions, context.now_ms
    )

    def answer(error: ErrorCode) -> AddPartitionsToTxnResponse:
        return _clients_answer(request, for_version(error, context), {})

    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)


def _error(services: Services, context: RequestContext, partition: TopicPartition) -> ErrorCode:
    if not services.permissions.allows(
        context, Operation.WRITE, ResourceType.TOPIC, partition.topic
    ):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        topic = services.topics.require(partition.topic)
        topic.partition(partition.partition)
    except ApiError as error:
        return error.code
    return ErrorCode.INVALID_TOPIC_EXCEPTION if topic.is_internal else ErrorCode.NONE


def _handle_brokers(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Work[Reply[AddPartitionsToTxnResponse]]:
    if not services.permissions.allows(context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    replies: list[Reply[AddPartitionsToTxnResult]] = []
    for wanted in request.transactions:
        replies.append(_one(services, context, wanted))
        count = sum(len(topic.partitions) for topic in wanted.topics)
        yield GROUP_COST + count * ENTRY_COST
    results = yield from value_of(gather(replies))
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _one(
    services: Services, context: RequestContext, wanted: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult | Deferred[AddPartitionsToTxnResult]:
    partitions = [
        TopicPartition(topic.name, index) for topic in wanted.topics for index in topic.partitions
    ]
    producer = Producer(wanted.producer_id, wanted.producer_epoch)
    coordinator = services.transactions.coordinator

    def answer(
        error: ErrorCode, errors: Mapping[TopicPartition, ErrorCode] = MappingProxyType({})
    ) -> AddPartitionsToTxnResult:
        return AddPartitionsToTxnResult(
            transactional_id=wanted.transactional_id,
            topic_results=_results(wanted.topics, error, errors),
        )

    missing = {
        partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for partition in partitions
        if not _exists(services, partition)
    }
    if missing:
        return answer(ErrorCode.OPERATION_NOT_ATTEMPTED, missing)
    if wanted.verify_only:
        errors = {
            partition: coordinator.verify(wanted.transactional_id, producer, partition)
            for partition in partitions
        }
        knows = context.header.api_version >= _ABORTABLE_VERSION
        not_added = ErrorCode.TRANSACTION_ABORTABLE if knows else ErrorCode.INVALID_TXN_STATE
        for partition, error in errors.items():
            if error is ErrorCode.INVALID_TXN_STATE:
                errors[partition] = not_added
        return answer(ErrorCode.NONE, errors)
    reply = coordinator.enter(wanted.transactional_id, producer, partitions, context.now_ms)
    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)


def _exists(services: Services, partition: TopicPartition) -> bool:
    topic = services.topics.get(partition.topic)
    return topic is not None and 0 <= partition.partition < len(topic.partitions)


def _clients_answer(
    request: AddPartitionsToTxnRequest,
    error: ErrorCode,
    errors: Mapping[TopicPartition, ErrorCode],
) -> AddPartitionsToTxnResponse:
    results = _results(request.v3_and_below_topics, error, errors)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def _results(
    topics: Sequence[AddPartitionsToTxnTopic],
    error: ErrorCode,
    errors: Mapping[TopicPartition, ErrorCode],
) -> list[AddPartitionsToTxnTopicResult]:
    return [
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
        for topic in topics
    ]
