"""Produce and InitProducerId: batches are sent to the leaders of their partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER, NO_TOPIC_ID, ClusterMetadata
from headrace.clients.flows.effects import Call, ClientState, Flow, ask
from headrace.clients.flows.routing import (
    by_topic,
    check_partitions_exist,
    no_leader,
    partition_error,
)
from headrace.errors import ApiError, ErrorCode, HeadraceError, ProtocolError, TransportError
from headrace.protocol.codec import Message
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.types import Buffer, TopicPartition

NAMES_VERSION: Final = 12
"""The newest version of Produce in which topics have names. Later ones have ids, which old brokers do not return."""


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """The result of Produce for one partition."""

    base_offset: int = -1
    """The offset of the first record of the batch; -1 with acks=0."""
    log_append_time_ms: int = -1
    """The broker's time in milliseconds since 1970, on topics with LogAppendTime; -1 on other topics."""
    log_start_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    """The message of the broker about the error; "" if there is none."""
    names_leader: bool = False
    """Whether the response named the new leader with the error, and the metadata has this leader now."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and its epoch, with which brokers detect batches that are sent again; -1 is none."""

    producer_id: int = -1
    producer_epoch: int = -1


def produce_call(
    cluster: ClusterMetadata,
    node: int,
    batches: Mapping[TopicPartition, Buffer],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
    max_version: int | None = None,
) -> tuple[Call, dict[bytes, str]]:
    """Build the call for one broker, with one batch for each partition. The topics are known.

    Returns:
        The call, and the names of its topics by their ids.
    """
    names: dict[bytes, str] = {}
    topics = []
    for name, partitions in by_topic(batches).items():
        topic_id = cluster.topics[name].topic_id
        names[topic_id] = name
        data = [
            PartitionProduceData(index=number, records=batch)
            for number, batch in partitions.items()
        ]
        topics.append(TopicProduceData(name=name, topic_id=topic_id, partition_data=data))
    if NO_TOPIC_ID in names:
        max_version = NAMES_VERSION if max_version is None else min(max_version, NAMES_VERSION)
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics
    )
    return Call(request=request, node=node, answered=acks != 0, max_version=max_version), names


def read_produce(
    state: ClientState, response: Message, names: Mapping[bytes, str], node: int
) -> Iterator[tuple[TopicPartition, ProducedPartition]]:
    """Yield the results in a response by partition.

    Args:
        state: The client's state, whose metadata gets the leaders that the response names with errors.
        response: The response.
        names: The names of the topics of the request by their ids.
        node: The node id of the broker that has responded.
    """
    if not isinstance(response, ProduceResponse):
        raise ProtocolError(f"expected a ProduceResponse, got {type(response).__name__}")
    for topic in response.responses:
        topic_name = topic.name or names.get(topic.topic_id, "")
        for partition in topic.partition_responses:
            place = TopicPartition(topic_name, partition.index)
            messages = [partition.error_message] if partition.error_message else []
            messages += [
                f"record {wrong.batch_index}: {wrong.batch_index_error_message or 'refused'}"
                for wrong in partition.record_errors
            ]
            yield (
                place,
                ProducedPartition(
                    partition.base_offset,
                    partition.log_append_time_ms,
                    partition.log_start_offset,
                    ErrorCode(partition.error_code),
                    "; ".join(messages),
                    partition.current_leader is not None
                    and state.metadata.learn_leader(
                        place, partition.current_leader, response.node_endpoints, node
                    ),
                ),
            )


def produce(
    state: ClientState, topic_partition: TopicPartition, batch: Buffer, acks: int, timeout_ms: int
) -> Flow[ProducedPartition]:
    """Write one batch, and retry after retriable errors.

    If the connection is lost before the response, a batch without a producer id may be written twice. A batch with a
    producer id and a sequence number is written once, and the broker repeats its first response.

    Raises:
        ApiError: The broker refused the batch.
    """
    backoff = state.backoff()
    while True:
        yield from metadata.ensure(state, [topic_partition.topic], auto_create=True)
        check_partitions_exist(state, [topic_partition])
        node = state.metadata.leader(topic_partition)
        cause: HeadraceError = no_leader(topic_partition)
        if node != NO_LEADER:
            epoch = state.metadata.leader_epoch(topic_partition)
            call, names = produce_call(
                state.metadata, node, {topic_partition: batch}, acks=acks, timeout_ms=timeout_ms
            )
            outcome = yield from _attempt(state, call, names, topic_partition)
            if isinstance(outcome, ProducedPartition):
                return outcome
            if state.metadata.leader_epoch(topic_partition) > epoch:
                continue  # the response has named the new leader
            cause = outcome
        state.stale_topics.add(topic_partition.topic)
        yield backoff.after(cause)


def _attempt(
    state: ClientState, call: Call, names: Mapping[bytes, str], topic_partition: TopicPartition
) -> Flow[ProducedPartition | HeadraceError]:
    """Send a batch once. Return the result or a retriable error; raise any other error."""
    try:
        response = yield call
    except TransportError as error:
        return error
    if response is None:
        return ProducedPartition()
    produced = dict(read_produce(state, response, names, call.node)).get(topic_partition)
    if produced is None:
        raise ProtocolError(f"the response to Produce does not mention {topic_partition}")
    # DUPLICATE_SEQUENCE_NUMBER means that an earlier attempt was written.
    if produced.error in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
        return produced
    failure = partition_error(topic_partition, produced.error, produced.message)
    if not failure.retriable:
        raise failure
    return failure


def init_producer_id(
    state: ClientState, previous: ProducerIdentity | None = None
) -> Flow[ProducerIdentity]:
    """Request a producer id, or the next epoch of `previous` (KIP-360)."""
    known = previous or ProducerIdentity()
    request = InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout_ms=60_000,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
    )
    backoff = state.backoff()
    while True:
        try:
            response = yield from ask(Call(request=request), InitProducerIdResponse)
        except TransportError as error:
            yield backoff.after(error)
            continue
        if not response.error_code:
            return ProducerIdentity(response.producer_id, response.producer_epoch)
        failure = ApiError.for_code(response.error_code)
        if not failure.retriable:
            raise failure
        yield backoff.after(failure)
