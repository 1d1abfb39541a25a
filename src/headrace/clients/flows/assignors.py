"""How the leader of a group divides partitions among the members."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.types import TopicPartition


def assign_range(
    subscriptions: Mapping[str, frozenset[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Give each member a run of neighbouring partitions of each topic, as Kafka's RangeAssignor does.

    Args:
        subscriptions: Member id to the topics it wants.
        partition_counts: Topic to its number of partitions; topics that do not exist are left out.

    Returns:
        The partitions of every member, also of those that get none. Members are taken in the order of their ids, and
        the first ones get one partition more where the division leaves a rest.
    """
    assignment: dict[str, list[TopicPartition]] = {member: [] for member in sorted(subscriptions)}
    for topic in sorted(partition_counts):
        members = [member for member in sorted(subscriptions) if topic in subscriptions[member]]
        if not members:
            continue
        share, rest = divmod(partition_counts[topic], len(members))
        first = 0
        for index, member in enumerate(members):
            end = first + share + (index < rest)
            assignment[member] += [TopicPartition(topic, number) for number in range(first, end)]
            first = end
    return assignment
