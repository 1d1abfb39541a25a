"""The requests of a transaction to its coordinator, and to the coordinator of the group whose offsets it commits.

There are two protocols. In the older one the producer adds each partition and group at the coordinator before it writes
there, and keeps its epoch until an error. In the newer one (KIP-890, `transaction.version` 2 among the finalized
features) the brokers to which the producer writes inform the coordinator, and each transaction has an epoch of its own,
so that a late request cannot belong to the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from headrace import __version__
from headrace.clients.flows.coordinator import (
    GROUP_KEY_TYPE,
    LOST_COORDINATOR_ERRORS,
    TRANSACTION_KEY_TYPE,
    find_coordinator,
    forget,
)
from headrace.clients.flows.effects import Backoff, Call, ClientState, Flow, ask
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.produce import ProducerIdentity
from headrace.clients.flows.routing import by_topic
from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from headrace.types import TopicPartition

R = TypeVar("R", bound=Message)

FEATURE: Final = "transaction.version"
OLDER_PRODUCE: Final = 11
"""The newest version of Produce in the older protocol; in version 12 a batch adds its partition to the transaction."""
OLDER_TXN_OFFSET_COMMIT: Final = 4
"""The newest version of TxnOffsetCommit in the older protocol; in version 5 offsets add their group."""
OLDER_END_TXN: Final = 4
"""The newest version of EndTxn in the older protocol; a response of version 5 has the next producer id and epoch."""
CONCURRENT_MS: Final = 10
"""The first backoff in milliseconds while the markers of the previous transaction are being written."""


class GroupMember(Protocol):
    """The identity of a consumer in its group, with which the coordinator detects former members."""

    @property
    def group_id(self) -> str:
        """The group id of the consumer."""

    @property
    def generation_id(self) -> int:
        """The generation, or the member epoch."""

    @property
    def member_id(self) -> str:
        """The member id of the consumer."""

    @property
    def group_instance_id(self) -> str | None:
        """The name of a static member; None for a dynamic one."""


@dataclass(slots=True)
class TransactionalProducer:
    """A producer as its transaction coordinator knows it."""

    transactional_id: str
    timeout_ms: int
    identity: ProducerIdentity = field(default_factory=ProducerIdentity)
    per_transaction: bool = False
    """Whether the producer uses the newer protocol, with an epoch for each transaction."""
    unanswered: int = 0
    """The number of requests of this transaction whose response was lost; they may still be in flight."""


def learn_protocol(state: ClientState, who: TransactionalProducer) -> Flow[None]:
    """Find out which protocol the cluster uses."""
    request = ApiVersionsRequest(
        client_software_name="headrace", client_software_version=__version__
    )
    backoff = state.backoff()
    while True:
        try:
            response = yield from ask(Call(request=request), ApiVersionsResponse)
        except TransportError as error:
            yield backoff.after(error)
            continue
        levels = {each.name: each.max_version_level for each in response.finalized_features}
        spoken = {each.api_key: each.max_version for each in response.api_keys}
        # The feature may be finalized while one of the brokers is still old.
        offsets = spoken.get(ApiKey.TXN_OFFSET_COMMIT, 0)
        who.per_transaction = levels.get(FEATURE, 0) >= 2 and offsets > OLDER_TXN_OFFSET_COMMIT
        return


def init_producer_id(state: ClientState, who: TransactionalProducer) -> Flow[None]:
    """Take over the transactional id, or get the next epoch (KIP-360) if the producer has an id already.

    It fences the previous producer of the transactional id, and ends its open transaction.

    Raises:
        ApiError: PRODUCER_FENCED: another producer has taken over the id since.
    """
    request = InitProducerIdRequest(
        transactional_id=who.transactional_id,
        transaction_timeout_ms=who.timeout_ms,
        producer_id=who.identity.producer_id,
        producer_epoch=who.identity.producer_epoch,
    )
    response = yield from _ask(
        state, who, request, InitProducerIdResponse, lambda response: response.error_code
    )
    who.identity = ProducerIdentity(response.producer_id, response.producer_epoch)


def add_partitions(
    state: ClientState, who: TransactionalProducer, partitions: Collection[TopicPartition]
) -> Flow[None]:
    """Add partitions to the transaction at its coordinator, before the first write to them."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=who.transactional_id,
        v3_and_below_producer_id=who.identity.producer_id,
        v3_and_below_producer_epoch=who.identity.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=list(numbers))
            for name, numbers in by_topic(dict.fromkeys(partitions)).items()
        ],
    )
    yield from _ask(state, who, request, AddPartitionsToTxnResponse, _not_added)


def _not_added(response: AddPartitionsToTxnResponse) -> int:
    codes = {
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    }
    codes -= {ErrorCode.NONE}
    causes = codes - {ErrorCode.OPERATION_NOT_ATTEMPTED}
    # An error that is not retriable decides, because retries of the others would be useless.
    return min(causes or codes, key=lambda code: ErrorCode(code).retriable, default=0)


def send_offsets(
    state: ClientState,
    who: TransactionalProducer,
    member: GroupMember,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    group_is_known: bool,
) -> Flow[None]:
    """Commit offsets of a group with the transaction.

    Args:
        state: The client's state.
        who: The producer.
        member: The identity of the consumer that has read the records.
        offsets: One past the last finished record of each partition.
        group_is_known: Whether the group was added to this transaction already.

    Raises:
        ApiError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, ...: the consumer is no member any more.
    """
    if not (who.per_transaction or group_is_known):
        announcement = AddOffsetsToTxnRequest(
            transactional_id=who.transactional_id,
            producer_id=who.identity.producer_id,
            producer_epoch=who.identity.producer_epoch,
            group_id=member.group_id,
        )
        yield from _ask(
            state, who, announcement, AddOffsetsToTxnResponse, lambda response: response.error_code
        )
    request = TxnOffsetCommitRequest(
        transactional_id=who.transactional_id,
        group_id=member.group_id,
        producer_id=who.identity.producer_id,
        producer_epoch=who.identity.producer_epoch,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=_rows(offsets),
    )
    yield from _ask(
        state,
        who,
        request,
        TxnOffsetCommitResponse,
        _not_committed,
        coordinator=(GROUP_KEY_TYPE, member.group_id),
        max_version=None if who.per_transaction else OLDER_TXN_OFFSET_COMMIT,
    )


def _rows(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> list[TxnOffsetCommitRequestTopic]:
    return [
        TxnOffsetCommitRequestTopic(
            name=name,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=at.offset,
                    committed_leader_epoch=at.leader_epoch,
                    committed_metadata=at.metadata,
                )
                for number, at in partitions.items()
            ],
        )
        for name, partitions in by_topic(offsets).items()
    ]


def _not_committed(response: TxnOffsetCommitResponse) -> int:
    codes = (part.error_code for topic in response.topics for part in topic.partitions)
    return next((code for code in codes if code), 0)


def end_transaction(
    state: ClientState, who: TransactionalProducer, *, committed: bool
) -> Flow[None]:
    """Commit or abort. In the newer protocol the producer has its next epoch afterwards."""
    request = EndTxnRequest(
        transactional_id=who.transactional_id,
        producer_id=who.identity.producer_id,
        producer_epoch=who.identity.producer_epoch,
        committed=committed,
    )
    response = yield from _ask(
        state,
        who,
        request,
        EndTxnResponse,
        lambda response: response.error_code,
        max_version=None if who.per_transaction else OLDER_END_TXN,
    )
    if response.producer_id >= 0:
        who.identity = ProducerIdentity(response.producer_id, response.producer_epoch)


# Requests with retries


def _ask(
    state: ClientState,
    who: TransactionalProducer,
    request: Message,
    response_type: type[R],
    error_of: Callable[[R], int],
    *,
    coordinator: tuple[int, str] | None = None,
    max_version: int | None = None,
) -> Flow[R]:
    """Send a request to a coordinator, by default the transaction's, and retry until it succeeds or fails for good.

    Raises:
        ApiError: The coordinator refuses; at the deadline also a retriable error.
        TransportError: The coordinator has not answered before the deadline.
    """
    key_type, name = coordinator or (TRANSACTION_KEY_TYPE, who.transactional_id)
    what = f"{'group' if key_type == GROUP_KEY_TYPE else 'transactional id'} {name!r}"
    backoff = state.backoff()
    concurrent = Backoff(CONCURRENT_MS, state.retry_backoff_max_ms)
    while True:
        node = yield from find_coordinator(state, name, key_type)
        try:
            response = yield from ask(
                Call(request=request, node=node, max_version=max_version), response_type
            )
        except TransportError as error:
            who.unanswered += 1
            forget(state, name, key_type)
            yield backoff.after(error)
            continue
        except GeneratorExit:  # the program has stopped waiting, and the request is in flight
            who.unanswered += 1
            raise
        code = error_of(response)
        if not code:
            return response
        refusal = ApiError.for_code(code, f"{what}: {ErrorCode(code).description}")
        if not refusal.retriable:
            raise refusal
        if code in LOST_COORDINATOR_ERRORS:
            forget(state, name, key_type)
        pauses = concurrent if code == ErrorCode.CONCURRENT_TRANSACTIONS else backoff
        yield pauses.after(refusal)
