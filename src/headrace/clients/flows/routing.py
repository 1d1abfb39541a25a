"""Requests for partitions: each partition's part goes to its leader, and is retried if the leader has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER
from headrace.clients.flows.effects import Call, ClientState, Flow
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
from headrace.protocol.codec import Message
from headrace.types import TopicPartition

P = TypeVar("P")
V = TypeVar("V")


class Answer(NamedTuple):
    """The part of a response for one partition."""

    topic_partition: TopicPartition
    error_code: int
    value: object


def by_topic(work: Mapping[TopicPartition, P]) -> dict[str, dict[int, P]]:
    """Group items by topic, then by partition number."""
    topics: dict[str, dict[int, P]] = {}
    for (topic, partition), item in work.items():
        topics.setdefault(topic, {})[partition] = item
    return topics


def by_leader(
    state: ClientState, work: Mapping[TopicPartition, P]
) -> dict[int, dict[TopicPartition, P]]:
    """Group items by the node id of the leader. Items of partitions without a leader are under NO_LEADER (-1)."""
    nodes: dict[int, dict[TopicPartition, P]] = {}
    for topic_partition, item in work.items():
        nodes.setdefault(state.metadata.leader(topic_partition), {})[topic_partition] = item
    return nodes


def ask_leaders(
    state: ClientState,
    work: Mapping[TopicPartition, P],
    build: Callable[[Mapping[TopicPartition, P]], Message],
    read: Callable[[Message], Iterable[Answer]],
) -> Flow[dict[TopicPartition, object]]:
    """Send each partition's item to its leader until every partition has a result.

    Retriable errors are retried after a backoff, with new metadata if the leader was wrong.

    Returns:
        The result of each partition.

    Raises:
        ApiError: The first error that is not retriable.
    """
    done: dict[TopicPartition, object] = {}
    remaining = dict(work)
    backoff = state.backoff()
    while True:
        yield from ensure_partitions(state, remaining)
        nodes = by_leader(state, remaining)
        leaderless = nodes.pop(NO_LEADER, {})
        cause: HeadraceError | None = None
        if leaderless:
            cause = no_leader(next(iter(leaderless)))
            state.stale_topics.update(topic for topic, _ in leaderless)
        outcomes = yield tuple(Call(request=build(part), node=node) for node, part in nodes.items())
        for part, outcome in zip(nodes.values(), outcomes, strict=True):
            error = _collect(state, part, outcome, read, done)
            cause = error or cause
        remaining = {key: item for key, item in remaining.items() if key not in done}
        if not remaining:
            return done
        yield backoff.after(
            cause or TransportError("the response of the broker has no result for some partitions")
        )


def _collect(
    state: ClientState,
    part: Mapping[TopicPartition, object],
    outcome: Message | HeadraceError,
    read: Callable[[Message], Iterable[Answer]],
    done: dict[TopicPartition, object],
) -> HeadraceError | None:
    """Move the results in a broker's response to `done`. Return a retriable error; raise any other error."""
    if isinstance(outcome, TransportError):
        state.stale_topics.update(topic for topic, _ in part)
        return outcome
    if isinstance(outcome, HeadraceError):
        raise outcome
    passing: ApiError | None = None
    for topic_partition, error_code, value in read(outcome):
        if not error_code:
            done[topic_partition] = value
            continue
        error = partition_error(topic_partition, error_code)
        if not error.retriable:
            raise error
        metadata.forget_leader(state, topic_partition.topic, error.code)
        passing = error
    return passing


def ensure_partitions(state: ClientState, partitions: Collection[TopicPartition]) -> Flow[None]:
    """Request metadata until the partitions are known. A topic may have got more partitions since the last request.

    Raises:
        ApiError: UNKNOWN_TOPIC_OR_PARTITION, if the topic or the partition does not exist.
    """
    yield from metadata.ensure(state, {topic for topic, _ in partitions})
    unknown = {each.topic for each in partitions if state.metadata.partition(each) is None}
    if unknown:
        # The partitions may have been added after this client requested the metadata.
        yield from metadata.refresh(state, unknown)
    check_partitions_exist(state, partitions)


def check_partitions_exist(state: ClientState, partitions: Iterable[TopicPartition]) -> None:
    """Raise UNKNOWN_TOPIC_OR_PARTITION if a known topic does not have one of the partitions."""
    for topic_partition in partitions:
        topic = state.metadata.topics.get(topic_partition.topic)
        if topic is not None and topic_partition.partition not in topic.partitions:
            raise ApiError.for_code(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic.name!r} has {len(topic.partitions)} partitions, and no partition "
                f"{topic_partition.partition}",
            )


def partition_error(topic_partition: TopicPartition, error_code: int, text: str = "") -> ApiError:
    """Return an error whose message begins with the name of the partition."""
    description = text or ErrorCode(error_code).description
    return ApiError.for_code(error_code, f"{topic_partition}: {description}")


def no_leader(topic_partition: TopicPartition) -> ApiError:
    """Return the error of a partition that has no reachable leader."""
    return partition_error(topic_partition, ErrorCode.LEADER_NOT_AVAILABLE)
