"""Requests of administrators about transactions: list and describe them, find and abort hanging ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from headrace.clients.flows.all_coordinators import ask_all_coordinators
from headrace.clients.flows.coordinator import (
    LOST_COORDINATOR_ERRORS,
    TRANSACTION_KEY_TYPE,
    find_coordinator,
    forget,
    raise_for,
)
from headrace.clients.flows.effects import Call, ClientState, Flow, ask
from headrace.clients.flows.routing import Answer, ask_leaders, by_topic
from headrace.clients.flows.transactions import TransactionalProducer, init_producer_id
from headrace.errors import ApiError, ErrorCode, ProtocolError, TransportError
from headrace.protocol.codec import Message
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from headrace.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.types import TopicPartition

ONGOING: Final = "Ongoing"
"""The state of a transaction that its producer has not ended yet."""
FENCING_TIMEOUT_MS: Final = 1
"""The transaction timeout in milliseconds for a producer that only fences another one, as in Kafka's tools."""
_OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id in the list of its coordinator."""

    transactional_id: str
    producer_id: int
    state: str
    """Kafka's name of the state: "Ongoing", "CompleteCommit", ..."""
    coordinator: int
    """The node id of the coordinator."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its last transaction."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    """The begin of the transaction in milliseconds since 1970; None if none is open."""
    partitions: tuple[TopicPartition, ...]
    """The partitions of the open transaction; empty if none is open."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of an idempotent or transactional producer in a partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    """The time of the producer's last record in milliseconds since 1970; -1 if it is not known."""
    coordinator_epoch: int
    """The epoch of the coordinator that ended the producer's last transaction in the partition; -1 if there is none."""
    transaction_start_offset: int | None
    """The first offset of the producer's open transaction; None if none is open."""


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator will end."""

    partition: TopicPartition
    producer: ProducerState
    transactional_id: str | None
    """The id that the producer has now; None if no coordinator knows the producer."""


def list_transactions(
    state: ClientState,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
) -> Flow[list[TransactionListing]]:
    """Return the transactional ids of all coordinators, sorted by name.

    Args:
        state: The client's state.
        states: Return only transactions in one of these states; empty returns all.
        producer_ids: Return only transactions of these producers; empty returns all.
        longer_than_ms: Return only transactions that have been open for longer than this; -1 returns all.

    Raises:
        ApiError: A broker refuses; INVALID_REQUEST, if a state is unknown.
    """
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=longer_than_ms,
    )
    outcomes = yield from ask_all_coordinators(
        state, request, ListTransactionsResponse, lambda response: response.error_code
    )
    found: dict[str, TransactionListing] = {}
    for node, outcome in sorted(outcomes.items()):
        raise_for(outcome.error_code, f"broker {node} cannot list its transactions")
        if outcome.unknown_state_filters:
            names = ", ".join(outcome.unknown_state_filters)
            raise ApiError.for_code(
                ErrorCode.INVALID_REQUEST, f"no state of transactions is called {names}"
            )
        for each in outcome.transaction_states:
            # Brokers continue to count the duration after the end of a transaction.
            if longer_than_ms >= 0 and each.transaction_state not in _OPEN_STATES:
                continue
            found[each.transactional_id] = TransactionListing(
                each.transactional_id, each.producer_id, each.transaction_state, node
            )
    return [found[name] for name in sorted(found)]


def describe_transaction(state: ClientState, transactional_id: str) -> Flow[TransactionDescription]:
    """Request the state of a transactional id from its coordinator.

    Raises:
        ApiError: TRANSACTIONAL_ID_NOT_FOUND, TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
    """
    backoff = state.backoff()
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    while True:
        node = yield from find_coordinator(state, transactional_id, TRANSACTION_KEY_TYPE)
        try:
            response = yield from ask(
                Call(request=request, node=node), DescribeTransactionsResponse
            )
        except TransportError as error:
            forget(state, transactional_id, TRANSACTION_KEY_TYPE)
            yield backoff.after(error)
            continue
        if len(response.transaction_states) != 1:
            raise ProtocolError(
                f"the coordinator's response has no result for transactional id {transactional_id!r}"
            )
        [found] = response.transaction_states
        if not found.error_code:
            return _description(found, node)
        text = f"transactional id {transactional_id!r}: {ErrorCode(found.error_code).description}"
        refusal = ApiError.for_code(found.error_code, text)
        if not refusal.retriable:
            raise refusal
        if refusal.code in LOST_COORDINATOR_ERRORS:
            forget(state, transactional_id, TRANSACTION_KEY_TYPE)
        yield backoff.after(refusal)


def _description(found: TransactionState, node: int) -> TransactionDescription:
    began = found.transaction_start_time_ms
    return TransactionDescription(
        found.transactional_id,
        found.transaction_state,
        node,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        began if began >= 0 else None,
        tuple(
            TopicPartition(topic.topic, number)
            for topic in found.topics
            for number in topic.partitions
        ),
    )


def fence_producer(state: ClientState, transactional_id: str) -> Flow[None]:
    """Fence the producer of a transactional id, which aborts its open transaction.

    Raises:
        ApiError: The coordinator refuses.
    """
    who = TransactionalProducer(transactional_id, FENCING_TIMEOUT_MS)
    yield from init_producer_id(state, who)


def describe_producers(
    state: ClientState, partitions: Iterable[TopicPartition]
) -> Flow[dict[TopicPartition, list[ProducerState]]]:
    """Return the producers in each partition, from the leaders' state.

    Raises:
        ApiError: The error of the first partition that refuses.
    """

    def build(part: Mapping[TopicPartition, object]) -> Message:
        return DescribeProducersRequest(
            topics=[
                TopicRequest(name=name, partition_indexes=list(numbers))
                for name, numbers in by_topic(part).items()
            ]
        )

    found = yield from ask_leaders(state, dict.fromkeys(partitions), build, _producers)
    return cast("dict[TopicPartition, list[ProducerState]]", found)


def _producers(response: Message) -> list[Answer]:
    assert isinstance(response, DescribeProducersResponse)
    return [
        Answer(
            TopicPartition(topic.name, partition.partition_index),
            partition.error_code,
            [
                ProducerState(
                    each.producer_id,
                    each.producer_epoch,
                    each.last_sequence,
                    each.last_timestamp,
                    each.coordinator_epoch,
                    each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
                )
                for each in partition.active_producers
            ],
        )
        for topic in response.topics
        for partition in topic.partitions
    ]


def find_hanging(
    state: ClientState, partitions: Iterable[TopicPartition], *, idle_since_ms: int
) -> Flow[list[HangingTransaction]]:
    """Return transactions that are open in a partition but not at their coordinator.

    Args:
        state: The client's state.
        partitions: The partitions to examine.
        idle_since_ms: Return only transactions whose last record is older than this time, in milliseconds since 1970.
    """
    wanted = list(partitions)
    found = (yield from describe_producers(state, wanted)) if wanted else {}
    suspects = [
        (where, producer)
        for where in sorted(found)
        for producer in found[where]
        if producer.transaction_start_offset is not None
        and producer.last_timestamp_ms < idle_since_ms
    ]
    if not suspects:
        return []
    described = yield from _known_to_coordinators(
        state, {producer.producer_id for _, producer in suspects}
    )
    return [
        HangingTransaction(where, producer, None if known is None else known.transactional_id)
        for where, producer in suspects
        for known in [described.get(producer.producer_id)]
        if known is None or where not in known.partitions
    ]


def _known_to_coordinators(
    state: ClientState, producer_ids: Collection[int]
) -> Flow[dict[int, TransactionDescription]]:
    """Return the transactions at the coordinators, by producer id."""
    listings = yield from list_transactions(state, producer_ids=sorted(producer_ids))
    described: dict[int, TransactionDescription] = {}
    for each in listings:
        try:
            description = yield from describe_transaction(state, each.transactional_id)
        except ApiError as error:
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue  # it has expired since it was listed
        described[each.producer_id] = description
    return described


def abort_hanging(
    state: ClientState, partition: TopicPartition, start_offset: int
) -> Flow[ProducerState]:
    """Write an abort marker for the transaction that begins at an offset of a partition.

    Returns:
        The producer whose transaction it was.

    Raises:
        ApiError: INVALID_TXN_STATE, if no open transaction begins at the offset, or if the coordinator knows the
            transaction, so that it does not hang and the marker would abort a part of it; CLUSTER_AUTHORIZATION_FAILED,
            or another error of the leader.
    """
    found = yield from describe_producers(state, [partition])
    owner = next(
        (each for each in found[partition] if each.transaction_start_offset == start_offset), None
    )
    if owner is None:
        raise ApiError.for_code(
            ErrorCode.INVALID_TXN_STATE,
            f"{partition}: no open transaction begins at offset {start_offset}",
        )
    known = (yield from _known_to_coordinators(state, [owner.producer_id])).get(owner.producer_id)
    if known is not None and known.state == ONGOING and partition in known.partitions:
        raise ApiError.for_code(
            ErrorCode.INVALID_TXN_STATE,
            f"{partition}: the transaction at offset {start_offset} does not hang: transactional id "
            f"{known.transactional_id!r} has it open. Abort it by that id, in all of its partitions",
        )
    marker = WritableTxnMarker(
        producer_id=owner.producer_id,
        producer_epoch=owner.producer_epoch,
        transaction_result=False,
        topics=[
            WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])
        ],
        coordinator_epoch=max(owner.coordinator_epoch, 0),
    )

    def build(_part: Mapping[TopicPartition, object]) -> Message:
        return WriteTxnMarkersRequest(markers=[marker])

    yield from ask_leaders(state, {partition: None}, build, _marked)
    return owner


def _marked(response: Message) -> list[Answer]:
    assert isinstance(response, WriteTxnMarkersResponse)
    return [
        Answer(TopicPartition(topic.name, part.partition_index), part.error_code, None)
        for marker in response.markers
        for topic in marker.topics
        for part in topic.partitions
    ]
