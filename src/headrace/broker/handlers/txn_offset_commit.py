"""TxnOffsetCommit (API key 28), versions 0-5.

Behaviour: The offsets are records of the producer in `__consumer_offsets`. They take effect when the transaction is
committed, and are discarded when it is aborted. Up to v4 the group must have been added to the transaction
(AddOffsetsToTxn); otherwise the error is INVALID_TXN_STATE, in v4 TRANSACTION_ABORTABLE. From v5 on the request adds
the group (KIP-890). From v3 on a member whose partitions were revoked is fenced. Each partition has an error of its
own. Partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION, and the other partitions are committed.
Versions: v2 leader epochs; v3 flexible, member, generation and group instance; v4 TRANSACTION_ABORTABLE; v5 adds the
group to the transaction.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from headrace.broker.bounds.request_pieces import OFFSETS_A_PIECE, in_pieces, is_long, joined
from headrace.broker.context import RequestContext
from headrace.broker.coordinators.remote import Confirmed, has_open_transaction
from headrace.broker.coordinators.transaction_versions import bumps_epoch
from headrace.broker.coordinators.transactions import WriteErrors
from headrace.broker.services import Services
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.broker.waiting.steps import ENTRY_COST, Work, value_of
from headrace.core.coordinator.any_group.transactional import commit_failed
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType
from headrace.types import TopicPartition

API_KEY: Final = ApiKey.TXN_OFFSET_COMMIT
VERSIONS: Final = VersionRange(0, 5)


_ABORTABLE_VERSION: Final = 4
_CLASSIC: Final = WriteErrors(
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.INVALID_TXN_STATE,
)
_ABORTABLE: Final = _CLASSIC._replace(not_added=ErrorCode.TRANSACTION_ABORTABLE)


def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> Reply[TxnOffsetCommitResponse] | Work[TxnOffsetCommitResponse]:
    """Commit offsets as part of a transaction."""
    if is_long(request.topics):
        return _commit_in_steps(services, context, request)
    return _commit_permitted(services, context, request)


def _commit_in_steps(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> Work[TxnOffsetCommitResponse]:
    replies: list[Reply[TxnOffsetCommitResponse]] = []
    for topics in in_pieces(request.topics):
        some = copy(request)
        some.topics = topics
        replies.append(_commit_permitted(services, context, some))
        yield OFFSETS_A_PIECE * ENTRY_COST
    response = TxnOffsetCommitResponse()
    for answer in (yield from value_of(gather(replies))):
        response.topics = joined(response.topics, answer.topics)
    return response


def _commit_permitted(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> Reply[TxnOffsetCommitResponse]:
    try:
        resource = ResourceType.TRANSACTIONAL_ID
        services.permissions.authorize(context, Operation.WRITE, resource, request.transactional_id)
        services.permissions.authorize(
            context, Operation.READ, ResourceType.GROUP, request.group_id
        )
    except ApiError as error:
        return commit_failed(request, error.code)
    errors = {
        TopicPartition(topic.name, partition.partition_index): code
        for topic in request.topics
        for partition in topic.partitions
        if (code := _error(services, context, topic, partition.partition_index))
        is not ErrorCode.NONE
    }
    if not errors:
        return _commit(services, context, request)
    response = commit_failed(request, ErrorCode.NONE)
    for topic in request.topics:
        topic.partitions = [
            partition
            for partition in topic.partitions
            if TopicPartition(topic.name, partition.partition_index) not in errors
        ]

    def complete(tried: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        for topic, outcome in zip(response.topics, tried.topics, strict=True):
            codes = iter(outcome.partitions)
            for partition in topic.partitions:
                refused = errors.get(TopicPartition(topic.name, partition.partition_index))
                partition.error_code = next(codes).error_code if refused is None else refused
        return response

    reply = _commit(services, context, request)
    return reply.map(complete) if isinstance(reply, Deferred) else complete(reply)


def _commit(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Deferred[TxnOffsetCommitResponse]:
    index = services.groups.partition_for(request.group_id)
    if index is None:
        return commit_failed(request, ErrorCode.NOT_COORDINATOR)
    place = TopicPartition(OFFSETS_TOPIC, index)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    errors = _ABORTABLE if context.header.api_version >= _ABORTABLE_VERSION else _CLASSIC
    coordinator, remote = services.transactions.coordinator, services.transactions.remote
    transactional_id, bumps = request.transactional_id, bumps_epoch(context)

    def commit(error: ErrorCode) -> Reply[TxnOffsetCommitResponse]:
        if error is ErrorCode.NONE and bumps and not is_remote:
            error = coordinator.verify(transactional_id, producer, place)  # it may have ended
        try:
            if error is not ErrorCode.NONE:
                raise errors.refusal(error, producer, place)
            _require_topics(services, request)
        except ApiError as refusal:
            return commit_failed(request, refusal.code)
        return services.groups.commit_transactional_offsets(request, services.time.now_ms)

    reply: Reply[ErrorCode] = (
        coordinator.enter(transactional_id, producer, [place], context.now_ms)
        if bumps
        else coordinator.verify(transactional_id, producer, place)
    )
    is_remote = reply is ErrorCode.NOT_COORDINATOR and remote.coordinates(transactional_id)
    if is_remote:
        reply = _confirmed(services, request, producer, place, adds=bumps)
    if not isinstance(reply, Deferred):
        return commit(reply)
    answer: Deferred[TxnOffsetCommitResponse] = Deferred()

    def entered(error: ErrorCode) -> None:
        committed = commit(error)
        if isinstance(committed, Deferred):
            answer.follow(committed)
        else:
            services.purgatory.deliver_later(lambda: answer.resolve(committed))

    reply.on_done(entered)
    return answer


def _confirmed(
    services: Services,
    request: TxnOffsetCommitRequest,
    producer: ProducerIdAndEpoch,
    place: TopicPartition,
    *,
    adds: bool,
) -> Reply[ErrorCode]:
    """Have the coordinator, which is another broker, confirm that the group's partition is in the transaction."""
    partition = services.partitions.find(*place)
    if partition is None:
        return ErrorCode.NOT_COORDINATOR
    if has_open_transaction(partition, producer):
        return ErrorCode.NONE
    remote, confirmed = services.transactions.remote, Deferred[ErrorCode]()
    confirmation = remote.confirmations.begin(place, producer.producer_id)

    def found(codes: Confirmed) -> None:
        remote.confirmations.end(place, producer.producer_id, confirmation)
        concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
        confirmed.resolve(codes[place] if confirmation.valid else concurrent)

    remote.confirm(request.transactional_id, producer, [place], adds=adds).on_done(found)
    return confirmed


def _require_topics(services: Services, request: TxnOffsetCommitRequest) -> None:
    """Check after a wait that the topics still exist: an offset of a deleted topic would never be removed.

    Raises:
        UnknownTopicOrPartitionError: A topic was deleted.
    """
    for topic in request.topics:
        if topic.partitions:
            services.topics.require(topic.name)


def _error(
    services: Services, context: RequestContext, wanted: TxnOffsetCommitRequestTopic, index: int
) -> ErrorCode:
    try:
        services.permissions.authorize(context, Operation.READ, ResourceType.TOPIC, wanted.name)
    except ApiError as error:
        return error.code
    topic = services.topics.get(wanted.name)
    exists = topic is not None and 0 <= index < topic.partitions_count
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
