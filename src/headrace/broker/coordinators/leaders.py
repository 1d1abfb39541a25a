"""The brokers that lead the partitions of internal topics, and so coordinate their groups and transactions."""

from __future__ import annotations

from typing import Final

from headrace.broker.partitions.topics import Topics
from headrace.core.coordinator.partitioning import partition_for_key

NO_LEADER: Final = -1
"""The id in place of a broker that leads a partition."""


def leader_of(topics: Topics, name: str, partition: int) -> int:
    """Return the id of the broker that leads a partition; `NO_LEADER` if no broker does, or it does not exist."""
    topic = topics.get(name)
    if topic is None or not 0 <= partition < topic.partitions_count:
        return NO_LEADER
    return topics.state(topic, partition).leader


def coordinator_of(topics: Topics, name: str, key: str) -> int:
    """Return the id of the broker that coordinates a group or a transactional id; `NO_LEADER` if no broker does.

    Args:
        topics: The topics.
        name: The internal topic that stores the group or the transactional id.
        key: The group id or the transactional id.
    """
    topic = topics.get(name)
    if topic is None or not topic.partitions_count:
        return NO_LEADER
    return leader_of(topics, name, partition_for_key(key, topic.partitions_count))
