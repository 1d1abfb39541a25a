"""Metadata of the cluster: brokers, topics and leaders. It is requested when it is unknown or stale."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from headrace.clients.flows.cluster import (
    MAX_BROKERS,
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from headrace.clients.flows.effects import Call, ClientState, Flow, ask
from headrace.errors import ApiError, ErrorCode, ProtocolError, TransportError
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

AUTO_CREATE_ATTEMPTS = 8
"""The number of requests for a topic that the broker may create; the creation takes a moment, or is disabled."""
UNKNOWN_TOPIC_ATTEMPTS = 4
"""The number of responses without a topic after which the topic does not exist. Some brokers may not know a new topic
for a moment."""

SUGGESTIONS = 3
"""The largest number of similar topic names in an error message."""
TRANSIENT_TOPIC_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

STALE_LEADER_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Error codes after which the leader must be looked up again (Kafka's InvalidMetadataException)."""


def refresh(
    state: ClientState, topics: Collection[str] | None, *, auto_create: bool = False
) -> Flow[ClusterMetadata]:
    """Request metadata from any broker, store it, and return all metadata of the client.

    Args:
        state: The client's state, whose metadata is updated.
        topics: The topics to request. None is all topics; an empty collection requests the brokers only.
        auto_create: Whether the broker may create missing topics.
    """
    request = MetadataRequest(
        topics=None
        if topics is None
        else [MetadataRequestTopic(name=name) for name in sorted(topics)],
        allow_auto_topic_creation=auto_create,
    )
    backoff = state.backoff()
    while True:
        try:
            response = yield from ask(Call(request=request), MetadataResponse)
        except TransportError as error:
            yield backoff.after(error)
            continue
        learn(state, response, None if topics is None else set(topics))
        return state.metadata


def name_topics(state: ClientState, topic_ids: Collection[bytes]) -> Flow[None]:
    """Request topics by their ids, and store the metadata of those that exist."""
    asked = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in sorted(topic_ids)]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    response = yield from ask(Call(request=request), MetadataResponse)
    wanted = set(topic_ids)
    named = {
        topic.name for topic in response.topics if bytes(topic.topic_id) in wanted and topic.name
    }
    learn(state, response, named)


def learn(
    state: ClientState, response: MetadataResponse, asked: Collection[str] | None = None
) -> None:
    """Store a Metadata response.

    Args:
        state: The client's state.
        response: The response.
        asked: The requested topics; other topics in the response are ignored. None if all topics were requested.

    Raises:
        ProtocolError: The response names more than `MAX_BROKERS` brokers.
    """
    metadata = state.metadata
    if len(response.brokers) > MAX_BROKERS:
        raise ProtocolError(
            f"a Metadata response names {len(response.brokers)} brokers; the limit is {MAX_BROKERS}"
        )
    if response.brokers:
        metadata.brokers = {
            broker.node_id: BrokerAddress(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
    metadata.controller_id = response.controller_id
    metadata.cluster_id = response.cluster_id
    received = [topic for topic in response.topics if asked is None or topic.name in asked]
    topics = [topic for topic in map(_topic, received) if topic is not None]
    if asked is None:
        named = {topic.name for topic in topics}
        metadata.topics = {name: known for name, known in metadata.topics.items() if name in named}
    for topic in topics:
        metadata.remember(topic)
        if topic.error or any(p.leader not in metadata.brokers for p in topic.partitions.values()):
            state.stale_topics.add(topic.name)
        else:
            state.stale_topics.discard(topic.name)


def _topic(topic: MetadataResponseTopic) -> TopicMetadata | None:
    if topic.name is None:  # in a response to a request by topic id
        return None
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicMetadata(
        topic.name,
        bytes(topic.topic_id),
        {
            partition.partition_index: PartitionMetadata(
                partition.partition_index,
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                ErrorCode(partition.error_code),
            )
            for partition in partitions
        },
        topic.is_internal,
        ErrorCode(topic.error_code),
    )


def ensure(state: ClientState, topics: Iterable[str], *, auto_create: bool = False) -> Flow[None]:
    """Request metadata of topics that are unknown or stale, until the topics and their leaders are known.

    Raises:
        ApiError: A topic does not exist or cannot be used, for example UNKNOWN_TOPIC_OR_PARTITION.
    """
    wanted = set(topics)
    backoff = state.backoff()
    while missing := {
        name for name in wanted if name in state.stale_topics or name not in state.metadata.topics
    }:
        yield from refresh(state, missing, auto_create=auto_create)
        error = _topic_error(state, missing)
        if error is None:
            return
        limit = AUTO_CREATE_ATTEMPTS if auto_create else UNKNOWN_TOPIC_ATTEMPTS
        hopeless = error.code not in TRANSIENT_TOPIC_ERRORS or (
            error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and backoff.attempts + 1 >= limit
        )
        if hopeless:
            raise error
        yield backoff.after(error)


def ensure_named(state: ClientState, topic: str, *, auto_create: bool = False) -> Flow[None]:
    """Request metadata of a topic that the program has named, as `ensure` does.

    Raises:
        ApiError: As for `ensure`. If the topic does not exist, the message suggests topics with a similar name.
    """
    try:
        yield from ensure(state, [topic], auto_create=auto_create)
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        yield from refresh(state, None)
        question = did_you_mean(state, topic)
        if not question:
            raise
        raise ApiError.for_code(error.code, f"{error.message}{question}") from error


def did_you_mean(state: ClientState, name: str) -> str:
    """Return the end of an error message about a missing topic: topics with a similar name, or "" without any."""
    existing = [
        topic
        for topic, known in state.metadata.topics.items()
        if not known.error and not known.is_internal
    ]
    close = difflib.get_close_matches(name, existing, SUGGESTIONS)
    return f". Did you mean {' or '.join(map(repr, close))}?" if close else ""


def _topic_error(state: ClientState, names: Iterable[str]) -> ApiError | None:
    """Return the error of the first topic that cannot be used; None if all can. Missing leaders are no error here."""
    for name in sorted(names):
        topic = state.metadata.topics.get(name)
        if topic is None:
            return ApiError.for_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
        if topic.error:
            text = (
                "" if topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else f"no topic {name!r}"
            )
            return ApiError.for_code(
                topic.error, text or f"topic {name!r}: {topic.error.description}"
            )
    return None


def forget_leader(state: ClientState, topic: str, error: ErrorCode) -> None:
    """Mark the metadata of a topic as stale if the error means that a leader is wrong."""
    if error in STALE_LEADER_ERRORS:
        state.stale_topics.add(topic)
