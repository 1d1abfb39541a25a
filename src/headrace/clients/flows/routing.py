"""Work per partition, sent to each partition's leader and sent again where the leader was the wrong one."""

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
    """One partition's part of a response."""

    topic_partition: TopicPartition
    error_code: int
    value: object


def by_topic(work: Mapping[TopicPartition, P]) -> dict[str, dict[int, P]]:
    """Group work by topic, as requests nest it."""
    topics: dict[str, dict[int, P]] = {}
    for (topic, partition), item in work.items():
        topics.setdefault(topic, {})[partition] = item
    return topics


def by_leader(
    state: ClientState, work: Mapping[TopicPartition, P]
) -> dict[int, dict[TopicPartition, P]]:
    """Group work by the leader's node id; NO_LEADER (-1) holds what has none."""
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
    """Send each partition's work to its leader until every partition has been answered.

    Errors that pass are tried again after a pause, with fresh metadata where the leader was wrong.

    Returns:
        The value of each partition's answer.

    Raises:
        ApiError: The first error that will not pass.
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
        yield backoff.after(cause or TransportError("the broker left partitions unanswered"))


def _collect(
    state: ClientState,
    part: Mapping[TopicPartition, object],
    outcome: Message | HeadraceError,
    read: Callable[[Message], Iterable[Answer]],
    done: dict[TopicPartition, object],
) -> HeadraceError | None:
    """Move one broker's answers to `done`; return an error that passes, raise one that does not."""
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
    """Make sure that partitions are known, asking again about topics that may have got more of them.

    Raises:
        ApiError: UNKNOWN_TOPIC_OR_PARTITION: there is no such topic, or it has no such partition.
    """
    yield from metadata.ensure(state, {topic for topic, _ in partitions})
    unknown = {each.topic for each in partitions if state.metadata.partition(each) is None}
    if unknown:
        # Another client may know of partitions that were added after this one asked.
        yield from metadata.refresh(state, unknown)
    check_partitions_exist(state, partitions)


def check_partitions_exist(state: ClientState, partitions: Iterable[TopicPartition]) -> None:
    """Raise UNKNOWN_TOPIC_OR_PARTITION for a partition number that a known topic does not have."""
    for topic_partition in partitions:
        topic = state.metadata.topics.get(topic_partition.topic)
        if topic is not None and topic_partition.partition not in topic.partitions:
            raise ApiError.for_code(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic.name!r} has {len(topic.partitions)} partitions, none numbered "
                f"{topic_partition.partition}",
            )


def partition_error(topic_partition: TopicPartition, error_code: int, text: str = "") -> ApiError:
    """Return the error of a partition, with its name in the text."""
    description = text or ErrorCode(error_code).description
    return ApiError.for_code(error_code, f"{topic_partition}: {description}")


def no_leader(topic_partition: TopicPartition) -> ApiError:
    """Return the error of a partition without a leader that can be reached."""
    return partition_error(topic_partition, ErrorCode.LEADER_NOT_AVAILABLE)
