"""Kafka's two assignors that ignore earlier assignments: range and round robin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headrace.clients.assignors.base import (
    Assignment,
    MemberSubscription,
    members_in_order,
)
from headrace.types import TopicPartition


class RangeAssignor:
    """Kafka's `range`: a member gets a range of each topic, so equal partition numbers go to one member."""

    name = "range"
    protocol: Literal["eager", "cooperative"] = "eager"

    def assign(
        self, members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int]
    ) -> Assignment:
        """Divide each topic separately. If there is a remainder, the first members get one partition more."""
        order = members_in_order(members)
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in order}
        for topic in sorted(partition_counts):
            takers = [member for member in order if topic in members[member].topics]
            if not takers:
                continue
            share, rest = divmod(partition_counts[topic], len(takers))
            first = 0
            for index, member in enumerate(takers):
                end = first + share + (index < rest)
                assignment[member] += [TopicPartition(topic, n) for n in range(first, end)]
                first = end
        return assignment


class RoundRobinAssignor:
    """Kafka's `roundrobin`: the partitions of all topics go to the members in turn."""

    name = "roundrobin"
    protocol: Literal["eager", "cooperative"] = "eager"

    def assign(
        self, members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int]
    ) -> Assignment:
        """Assign partitions in turn. Members that are not subscribed to the topic are skipped."""
        order = members_in_order(members)
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in order}
        turn = 0
        for topic in sorted(partition_counts):
            if not any(topic in subscription.topics for subscription in members.values()):
                continue
            for number in range(partition_counts[topic]):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                assignment[order[turn % len(order)]].append(TopicPartition(topic, number))
                turn += 1
        return assignment
