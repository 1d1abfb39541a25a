"""Kafka's two assignors without memory: range and round robin."""

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
    """A run of neighbouring partitions of each topic for each member; equal numbers of two topics stay together."""

    name = "range"
    protocol: Literal["eager", "cooperative"] = "eager"

    def assign(
        self, members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int]
    ) -> Assignment:
        """Divide each topic by itself; the first members get one more where the division leaves a rest."""
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
    """All partitions of all topics dealt out like cards."""

    name = "roundrobin"
    protocol: Literal["eager", "cooperative"] = "eager"

    def assign(
        self, members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int]
    ) -> Assignment:
        """Deal; members that do not want the topic are passed over, and dealing goes on behind the taker."""
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
