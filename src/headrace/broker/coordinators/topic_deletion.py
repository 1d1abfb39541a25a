"""The deletion of a topic together with the offsets that groups have committed for it."""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topics import Topics
from headrace.broker.waiting.steps import OFFSET_COST, Work, finished, value_of
from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.core.coordinator.runtime import Reply, gather
from headrace.errors import ApiError


def delete_topic(
    topics: Topics, groups: GroupCoordinator, topic: Topic, now_ms: int
) -> Reply[list[None]]:
    """Delete a topic at once; see `delete_topic_in_steps`."""
    return finished(_delete(topics, groups, topic, now_ms, topics.delete))


def delete_topic_in_steps(
    topics: Topics, groups: GroupCoordinator, topic: Topic, now_ms: int
) -> Work[Reply[list[None]]]:
    """Delete a topic, its data, and the offsets that groups have committed for it.

    The reply waits until the deletion is durable.

    Raises:
        ApiError: KAFKA_STORAGE_ERROR.
    """
    return _delete(topics, groups, topic, now_ms, topics.delete_in_steps)


def _delete(
    topics: Topics,
    groups: GroupCoordinator,
    topic: Topic,
    now_ms: int,
    delete: Callable[[Topic], Reply[None]],
) -> Work[Reply[list[None]]]:
    name, refusal = topic.name, None
    deleted: Reply[None] = None
    try:
        deleted = delete(topic)
    except ApiError as error:
        if topics.get(name) is not None:
            raise
        refusal = error  # the topic is deleted, but its files could not be removed
    replies: list[Reply[None]] = []
    for count, written in groups.forget_offsets(name, now_ms, lambda: topics.get(name) is not None):
        replies += written
        yield count * OFFSET_COST
    yield from value_of(deleted)
    if refusal is not None:
        raise refusal
    return gather(replies)
