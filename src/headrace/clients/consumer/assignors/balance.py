"""Balancing with memory: who has too much gives up the surplus, and nothing else moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.clients.consumer.assignors.base import MemberSubscription
from headrace.types import TopicPartition

Claims = Mapping[str, tuple[int, tuple[TopicPartition, ...]]]
"""Member id to the generation in which it was given its partitions, and these."""


def balance(
    members: Mapping[str, MemberSubscription],
    partition_counts: Mapping[str, int],
    claims: Claims,
) -> dict[str, list[TopicPartition]]:
    """Give out every partition so that no move from one member to another would make their counts more equal.

    Where all members want the same topics, that means counts over all topics that differ by at most one. Partitions
    stay where they were as far as that allows; where members are equal, the first by member id gets it.

    Args:
        members: Member id to its subscription.
        partition_counts: The number of partitions of each topic that exists.
        claims: What each member had.
    """
    takers = {
        topic: sorted(member for member in members if topic in members[member].topics)
        for topic in partition_counts
    }
    owned = _valid_claims(members, partition_counts, claims)
    taken = {partition for partitions in owned.values() for partition in partitions}
    free = [
        TopicPartition(topic, number)
        for topic, count in partition_counts.items()
        for number in range(count)
        if takers[topic] and (topic, number) not in taken
    ]
    # Those that few want go first: the others can make up for it.
    for partition in sorted(free, key=lambda name: (len(takers[name.topic]), name)):
        least = min(takers[partition.topic], key=lambda member: (len(owned[member]), member))
        owned[least].append(partition)
    _even_out(owned, takers)
    return {member: sorted(partitions) for member, partitions in owned.items()}


def _valid_claims(
    members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int], claims: Claims
) -> dict[str, list[TopicPartition]]:
    """Settle who had what: the claim of the newest generation holds, among equals the first member's."""
    holders: dict[TopicPartition, tuple[int, str]] = {}
    for member in sorted(members):
        generation, partitions = claims.get(member, (-1, ()))
        for partition in partitions:
            exists = 0 <= partition.partition < partition_counts.get(partition.topic, 0)
            if not exists or partition.topic not in members[member].topics:
                continue
            if partition not in holders or generation > holders[partition][0]:
                holders[partition] = generation, member
    owned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
    for partition in sorted(holders):
        owned[holders[partition][1]].append(partition)
    return owned


def _even_out(owned: dict[str, list[TopicPartition]], takers: Mapping[str, list[str]]) -> None:
    """Move single partitions to members with at least two fewer, until there are none.

    It is always one with the most that gives, so that nobody gives what it would have to get again.
    """
    fixed: set[str] = set()
    """Members that cannot give, as things stand."""
    while len(fixed) < len(owned):
        giver = min(owned.keys() - fixed, key=lambda member: (-len(owned[member]), member))
        if _give_one(giver, owned, takers):
            fixed.clear()
        else:
            fixed.add(giver)


def _give_one(
    giver: str, owned: dict[str, list[TopicPartition]], takers: Mapping[str, list[str]]
) -> bool:
    sizes = Counter(partition.topic for partition in owned[giver])
    least = {
        topic: min(takers[topic], key=lambda member: (len(owned[member]), member))
        for topic in sizes
    }
    if not least:
        return False
    # Of several topics the one that the member has most of, so that it keeps a bit of each.
    topic = min(sizes, key=lambda name: (len(owned[least[name]]), -sizes[name], name))
    if len(owned[least[topic]]) + 1 >= len(owned[giver]):
        return False
    partition = max(name for name in owned[giver] if name.topic == topic)
    owned[giver].remove(partition)
    owned[least[topic]].append(partition)
    return True
