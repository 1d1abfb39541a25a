"""Partitions that no member of a classic group of consumers reads, because the group's topics have changed.

In the classic protocol only the leader looks for new partitions, when it refreshes its metadata: every five minutes
with most clients. A generation may also have no leader. The coordinator knows the topics, the subscriptions and the
assignment. So the coordinator makes the members join again, by the responses to their next heartbeats.

Some leaders compute the assignment with old metadata, and leave the new partitions out again. The broker then closes
the leader's connection, which makes clients refresh their metadata. The leader joins and assigns once more.

Both happen at most once for each change of the group's topics, because an assignor may leave partitions out on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.coordinator.state.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.subscription import (
    GroupSubscription,
    read_assignment,
    read_subscription,
)
from headrace.core.coordinator.state.topics import TopicInfo, known_topics, metadata_hash
from headrace.protocol.messages.sync_group import SyncGroupRequest


def has_new_partitions(shard: GroupShard, group: ClassicGroup) -> bool:
    """Return whether members have to join again. The cost is one comparison, unless topics have changed.

    Args:
        shard: The shard of the group.
        group: The group, which stores the result of the comparison.
    """
    changes = shard.topics.changes
    if group.checked == changes or group.state is not GroupState.STABLE:
        return False
    group.checked = changes
    if group.subscribed is None:
        group.subscribed = _subscribed(group)
    topics = known_topics(shard.topics, group.subscribed.topics)
    hashed = metadata_hash(topics)
    if hashed == group.topics_hash:
        return False
    group.topics_hash = hashed
    assigned = [member.assignment for member in group.generation.members]
    group.rebalances_for_unowned = _leaves_out(topics, group.subscribed, assigned)
    return group.rebalances_for_unowned


def is_outdated(shard: GroupShard, request: SyncGroupRequest) -> bool:
    """Return whether the leader's assignment leaves out the partitions for which the coordinator began the rebalance.

    True at most once for each of these rebalances.

    Args:
        shard: The shard of the group.
        request: The SyncGroup of the leader.
    """
    group = shard.classic_groups.get(request.group_id)
    if (
        group is None
        or not group.rebalances_for_unowned
        or group.state is not GroupState.COMPLETING_REBALANCE
        or not group.is_leader(request.member_id)
        or group.generation.number != request.generation_id
    ):
        return False
    group.rebalances_for_unowned = False
    subscribed = _subscribed(group)
    topics = known_topics(shard.topics, subscribed.topics)
    return _leaves_out(topics, subscribed, [bytes(each.assignment) for each in request.assignments])


def _subscribed(group: ClassicGroup) -> GroupSubscription:
    """Return the subscriptions of all members; empty if they are not consumers, or if one cannot be decoded."""
    nothing = GroupSubscription(frozenset(), frozenset())
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return nothing
    topics: set[str] = set()
    owned: set[tuple[str, int]] = set()
    for member in group.generation.members:
        said = read_subscription(member.subscription)
        if said is None:
            return nothing
        topics.update(said.topics)
        owned |= said.owned
    return GroupSubscription(frozenset(topics), frozenset(owned))


def _leaves_out(
    topics: dict[str, TopicInfo], subscribed: GroupSubscription, assignments: Iterable[bytes]
) -> bool:
    """Return whether the assignments leave out a partition; false if an assignment cannot be decoded."""
    taken = set(subscribed.owned)
    for assignment in assignments:
        partitions = read_assignment(assignment)
        if partitions is None:
            return False
        taken |= partitions
    return any(
        (name, index) not in taken
        for name, info in topics.items()
        for index in range(info.partitions_count)
    )
