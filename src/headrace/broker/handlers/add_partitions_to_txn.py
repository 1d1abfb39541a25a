"""AddPartitionsToTxn (API key 24), versions 0-5.

Behaviour:
* The first partitions that are added begin the transaction. The response is sent when the addition is durable. Only
  then do the partitions accept batches of the transaction (KIP-890).
* The broker adds all partitions of a request or none: if some are refused, each of them has its error, and the others
  have OPERATION_NOT_ATTEMPTED. Internal topics are refused.
* From v4 on the request is for brokers, which need the permission CLUSTER_ACTION. It names several transactions. For
  each, the broker adds the partitions as for Produce 12, or only checks that the transaction has them. If the request
  names one transaction, a tagged field of the response says when the transaction has begun. A single broker sends no
  such requests.
Versions: v2 PRODUCER_FENCED; v3 flexible; v4 several transactions, verification (KIP-890); v5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.coordinators.transaction_versions import for_version
from headrace.broker.services import Services
from headrace.broker.topic_names import INTERNAL_TOPICS
from headrace.broker.waiting.steps import ENCODING_COST, ENTRY_COST, GROUP_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.deferred import Deferred
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
    added = _Added(request.v3_and_below_topics)
    yield from added.prepare()

    def answer(error: ErrorCode) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=added.answer(for_version(error, context))
        )

    may = services.permissions.allows(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )
    if not may:
        return answer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    for partition, result in added:
        result.partition_error_code = _error(services, context, partition)
        yield ENTRY_COST
    if added.has_errors:
        return answer(ErrorCode.OPERATION_NOT_ATTEMPTED)
    producer = ProducerIdAndEpoch(
        request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    )
    reply = services.transactions.coordinator.add_partitions(
        transactional_id, producer, added.partitions, context.now_ms
    )
    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)


class _Added:
    """The partitions of one transaction in a request, with their results."""

    __slots__ = ("_requested", "_results", "partitions", "topic_results")

    def __init__(self, requested: Sequence[AddPartitionsToTxnTopic]) -> None:
        self._requested = requested
        self.topic_results: list[AddPartitionsToTxnTopicResult] = []
        self.partitions: list[TopicPartition] = []
        self._results: list[AddPartitionsToTxnPartitionResult] = []

    def prepare(self) -> Work[None]:
        """Make a result without an error for each partition."""
        for topic in self._requested:
            results = [
                AddPartitionsToTxnPartitionResult(partition_index=index)
                for index in topic.partitions
            ]
            self.topic_results.append(
                AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results)
            )
            self.partitions += [TopicPartition(topic.name, index) for index in topic.partitions]
            self._results += results
            yield (1 + len(results)) * ENCODING_COST

    def __iter__(self) -> Iterator[tuple[TopicPartition, AddPartitionsToTxnPartitionResult]]:
        return zip(self.partitions, self._results, strict=True)

    @property
    def has_errors(self) -> bool:
        """Whether the result of a partition has an error."""
        return any(result.partition_error_code for result in self._results)

    def answer(self, error: ErrorCode) -> list[AddPartitionsToTxnTopicResult]:
        """Return the results, after `error` was set in those that have no error of their own."""
        if error is not ErrorCode.NONE:
            for result in self._results:
                result.partition_error_code = result.partition_error_code or error
        return self.topic_results


def _error(services: Services, context: RequestContext, partition: TopicPartition) -> ErrorCode:
    if not services.permissions.allows(
        context, Operation.WRITE, ResourceType.TOPIC, partition.topic
    ):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        services.partitions.require(partition.topic, partition.partition)
    except ApiError as error:
        # The topic exists if another broker leads the partition, whatever the state of the replica on this broker.
        if not services.transactions.remote.leads(partition):
            return error.code
    is_internal = partition.topic in INTERNAL_TOPICS
    return ErrorCode.INVALID_TOPIC_EXCEPTION if is_internal else ErrorCode.NONE


def _handle_brokers(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Work[Reply[AddPartitionsToTxnResponse]]:
    if not services.permissions.allows(context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    replies: list[Reply[AddPartitionsToTxnResult]] = []
    for wanted in request.transactions:
        replies.append((yield from _add_or_verify(services, context, wanted)))
        yield GROUP_COST
    results = yield from value_of(gather(replies))
    response = AddPartitionsToTxnResponse(results_by_transaction=results)
    if len(request.transactions) == 1:
        transactional_id = request.transactions[0].transactional_id
        response.headrace_start_ms = services.transactions.coordinator.start_ms_of(transactional_id)
    return response


def _add_or_verify(
    services: Services, context: RequestContext, wanted: AddPartitionsToTxnTransaction
) -> Work[Reply[AddPartitionsToTxnResult]]:
    added = _Added(wanted.topics)
    yield from added.prepare()

    def answer(error: ErrorCode) -> AddPartitionsToTxnResult:
        return AddPartitionsToTxnResult(
            transactional_id=wanted.transactional_id, topic_results=added.answer(error)
        )

    for partition, result in added:
        if not _exists(services, partition):
            result.partition_error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        yield ENTRY_COST
    if added.has_errors:
        return answer(ErrorCode.OPERATION_NOT_ATTEMPTED)
    producer = ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch)
    coordinator = services.transactions.coordinator
    if wanted.verify_only:
        if coordinator.is_suspect(wanted.transactional_id):
            return answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        is_abortable = context.header.api_version >= _ABORTABLE_VERSION
        not_added = ErrorCode.TRANSACTION_ABORTABLE if is_abortable else ErrorCode.INVALID_TXN_STATE
        for partition, result in added:
            error = coordinator.verify(wanted.transactional_id, producer, partition)
            is_missing = error is ErrorCode.INVALID_TXN_STATE
            result.partition_error_code = not_added if is_missing else error
            yield ENTRY_COST
        return answer(ErrorCode.NONE)
    reply = coordinator.enter(wanted.transactional_id, producer, added.partitions, context.now_ms)
    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)


def _exists(services: Services, partition: TopicPartition) -> bool:
    topic = services.topics.get(partition.topic)
    return topic is not None and 0 <= partition.partition < topic.partitions_count
