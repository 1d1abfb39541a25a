"""Whether a classic group of consumers leaves partitions of its topics to nobody, because the topics have changed.

In the classic protocol the leader alone looks for new partitions, as often as it refreshes its metadata: every five
minutes with most clients. A generation may also have no leader. The coordinator knows the topics, the subscriptions and
the assignment, so that it can have the members join again with their next heartbeats.

It does so once for each change of the group's topics. A leader may leave out partitions on purpose, or have old
metadata; asked again it would do the same.
"""

from __future__ import annotations

from headrace.core.coordinator.consumer.topics import known_topics, metadata_hash
from headrace.core.coordinator.group.classic import CONSUMER_PROTOCOL_TYPE, Group
from headrace.core.coordinator.group.shard import GroupShard
from headrace.core.coordinator.group.states import GroupState
from headrace.core.coordinator.group.subscription import read_assignment, subscribed_topics


def has_new_partitions(shard: GroupShard, group: Group) -> bool:
    """Return whether members have to join again. Costs a comparison, unless topics have changed.

    Args:
        shard: Whose group.
        group: The group; what was looked at is noted in it.
    """
    changes = shard.topics.changes
    if group.checked == changes or group.state is not GroupState.STABLE:
        return False
    group.checked = changes
    if group.subscribed is None:
        group.subscribed = _subscribed(group)
    topics = known_topics(shard.topics, group.subscribed)
    hashed = metadata_hash(topics)
    if hashed == group.topics_hash:
        return False
    group.topics_hash = hashed
    assigned: set[tuple[str, int]] = set()
    for member in group.generation.members:
        partitions = read_assignment(member.assignment)
        if partitions is None:
            return False
        assigned |= partitions
    return any(
        (name, index) not in assigned
        for name, info in topics.items()
        for index in range(info.partitions_count)
    )


def _subscribed(group: Group) -> frozenset[str]:
    """Return the topics of all members; none if the members are no consumers, or say what cannot be read."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return frozenset()
    topics: set[str] = set()
    for member in group.generation.members:
        said = subscribed_topics(member.subscription)
        if said is None:
            return frozenset()
        topics |= said
    return frozenset(topics)
