"""Fetch: raw record batches of several partitions, without retries, with an error for each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER, NO_TOPIC_ID, ClusterMetadata
from headrace.clients.flows.effects import Call, ClientState, Flow
from headrace.clients.flows.list_offsets import READ_UNCOMMITTED
from headrace.clients.flows.routing import by_leader, by_topic
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
from headrace.protocol.codec import Message
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from headrace.types import Buffer, FileRange, TopicPartition

DEFAULT_PARTITION_MAX_BYTES: Final = 1 << 20
DEFAULT_FETCH_MAX_BYTES: Final = 50 << 20
NAMES_VERSION: Final = 12
"""The newest version of Fetch in which topics have names. Later ones have ids, which old brokers do not return."""


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """The position for a fetch in one partition, and the limit for the response in bytes."""

    offset: int
    leader_epoch: int = -1
    """The leader epoch that the reader knows, which the broker checks; -1 checks nothing."""
    max_bytes: int = DEFAULT_PARTITION_MAX_BYTES


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """The response for one partition: whole batches, the first of which may begin before the requested offset."""

    records: Buffer = b""
    high_watermark: int = -1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    error: ErrorCode = ErrorCode.NONE
    """NONE, or the reason why there are no records. NETWORK_EXCEPTION is a lost connection."""
    aborted_transactions: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of transactions that read_committed readers must leave out."""
    reason: str = ""
    """The broker and the event, for NETWORK_EXCEPTION; "" for other errors."""
    names_leader: bool = False
    """Whether the response named the new leader with the error, and the next fetch goes there."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The limits of a fetch: how long a broker waits for records, and how many bytes it returns."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = DEFAULT_FETCH_MAX_BYTES
    isolation_level: int = READ_UNCOMMITTED
    tags: bytes | None = None
    """An encoded `TagFilter`. Brokers that do not support tags return all records. None is no filter."""


def fetch_call(
    cluster: ClusterMetadata,
    node: int,
    positions: Mapping[TopicPartition, FetchPosition],
    limits: FetchLimits,
    *,
    channel: str = "",
    timeout_ms: int | None = None,
) -> Call:
    """Build the call for one broker's partitions, without a fetch session. Their topics are known."""
    known = cluster.topics
    topics = [
        FetchTopic(
            topic=name,
            topic_id=known[name].topic_id,
            partitions=[
                FetchPartition(
                    partition=number,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    partition_max_bytes=position.max_bytes,
                )
                for number, position in partitions.items()
            ],
        )
        for name, partitions in by_topic(positions).items()
    ]
    newest = None
    for topic in topics:
        if topic.topic_id == NO_TOPIC_ID:
            newest = NAMES_VERSION
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=limits.isolation_level,
        session_id=0,
        session_epoch=-1,
        headrace_filter=limits.tags or b"",
        topics=topics,
    )
    return Call(
        request=request, node=node, channel=channel, timeout_ms=timeout_ms, max_version=newest
    )


def read_fetch(
    state: ClientState,
    positions: Mapping[TopicPartition, FetchPosition],
    outcome: Message | HeadraceError,
    node: int,
) -> Iterator[tuple[TopicPartition, FetchedPartition]]:
    """Yield the response of one broker by partition.

    After a leader error the metadata has the leader that the response names; without one, the topic becomes stale.
    """
    if isinstance(outcome, TransportError):
        state.stale_topics.update(topic for topic, _ in positions)
        lost = FetchedPartition(error=ErrorCode.NETWORK_EXCEPTION, reason=str(outcome))
        yield from ((topic_partition, lost) for topic_partition in positions)
        return
    if isinstance(outcome, HeadraceError):
        raise outcome
    assert isinstance(outcome, FetchResponse)
    if outcome.error_code:
        raise ApiError.for_code(outcome.error_code)
    names: dict[bytes, str] = {}
    for topic in outcome.responses:
        topic_name = topic.topic
        if not topic_name:
            # The id of a topic that was created again since the request is unknown here, and its response ignored.
            names = names or {state.metadata.topic_id(each.topic): each.topic for each in positions}
            topic_name = names.get(topic.topic_id, "")
        for data in topic.partitions:
            name = TopicPartition(topic_name, data.partition_index)
            if name not in positions:
                continue  # a partition that was not requested is ignored
            error, names_leader = ErrorCode(data.error_code), False
            if error:
                names_leader = state.metadata.learn_leader(
                    name, data.current_leader, outcome.node_endpoints, node
                )
                if not names_leader:
                    metadata.forget_leader(state, topic_name, error)
            records = data.records
            assert not isinstance(records, FileRange), "bytes from a socket are never a file range"
            yield (
                name,
                FetchedPartition(
                    b"" if records is None else records,
                    data.high_watermark,
                    data.log_start_offset,
                    data.last_stable_offset,
                    error,
                    tuple(
                        (aborted.producer_id, aborted.first_offset)
                        for aborted in data.aborted_transactions or ()
                    ),
                    names_leader=names_leader,
                ),
            )


def fetch(
    state: ClientState, positions: Mapping[TopicPartition, FetchPosition], limits: FetchLimits
) -> Flow[dict[TopicPartition, FetchedPartition]]:
    """Fetch once from the leader of each partition.

    A partition whose leader is unknown, wrong or unreachable is returned with this error, and the next fetch looks the
    leader up. There are no retries, because only the caller knows how long to wait. With several leaders the result is
    complete when the slowest has responded, which is at most `max_wait_ms` after it received the request.
    """
    yield from metadata.ensure(state, {topic for topic, _ in positions})
    nodes = by_leader(state, positions)
    leaderless = nodes.pop(NO_LEADER, {})
    # The response of a broker that throttles the client may contain no partitions: no records were read.
    fetched = dict.fromkeys(positions, FetchedPartition())
    fetched |= dict.fromkeys(leaderless, FetchedPartition(error=ErrorCode.LEADER_NOT_AVAILABLE))
    state.stale_topics.update(topic for topic, _ in leaderless)
    outcomes = yield tuple(
        fetch_call(state.metadata, node, part, limits) for node, part in nodes.items()
    )
    for (node, part), outcome in zip(nodes.items(), outcomes, strict=True):
        for topic_partition, partition in read_fetch(state, part, outcome, node):
            fetched[topic_partition] = partition
    return fetched


def with_offset(position: FetchPosition, offset: int) -> FetchPosition:
    """Return a copy of a position with another offset."""
    return replace(position, offset=offset)
