"""Balanced assignments that keep partitions where they are: only the surplus of a member moves."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.clients.assignors.base import MemberSubscription
from headrace.types import TopicPartition

MAX_STEPS: Final = 1_000_000
"""The limit of steps in the search for the best moves, about one second. Then all surplus is assigned anew."""

Claims = Mapping[str, tuple[int, tuple[TopicPartition, ...]]]
"""The partitions that each member had, with the generation in which they were assigned, by member id."""


def balance(
    members: Mapping[str, MemberSubscription],
    partition_counts: Mapping[str, int],
    claims: Claims,
) -> dict[str, list[TopicPartition]]:
    """Assign every partition so that moving one partition could not make the counts of two members more equal.

    If all members subscribe to the same topics, their counts differ by at most one. Counts may differ by more if there
    are so many different subscriptions that the search reaches `MAX_STEPS`. Partitions stay with their members as far
    as the balance allows. Among equal members the first by member id gets a partition.

    Args:
        members: The subscriptions by member id.
        partition_counts: The number of partitions of each topic that exists.
        claims: The partitions that each member had.
    """
    order = sorted(members)
    takers = {
        topic: [member for member in order if topic in members[member].topics]
        for topic in partition_counts
    }
    owned = _valid_claims(members, partition_counts, claims)
    division = _Division(owned, takers)
    taken = {partition for partitions in owned.values() for partition in partitions}
    free = [
        TopicPartition(topic, number)
        for topic, count in partition_counts.items()
        for number in range(count)
        if takers[topic] and (topic, number) not in taken
    ]
    # Partitions with few subscribers are assigned first. The other partitions can then even out the counts.
    for partition in sorted(free, key=lambda name: (len(takers[name.topic]), name)):
        division.give(partition, division.least(partition.topic))
    division.even_out()
    return division.assignment()


def _valid_claims(
    members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int], claims: Claims
) -> dict[str, list[TopicPartition]]:
    """Return the partitions that each member owned. If several members claim one, the newest generation counts.

    Among claims of the same generation the one of the first member by id counts.
    """
    owners: dict[TopicPartition, tuple[int, str]] = {}
    for member in sorted(members):
        generation, partitions = claims.get(member, (-1, ()))
        for partition in partitions:
            exists = 0 <= partition.partition < partition_counts.get(partition.topic, 0)
            if not exists or partition.topic not in members[member].topics:
                continue
            if partition not in owners or generation > owners[partition][0]:
                owners[partition] = generation, member
    owned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
    for partition in sorted(owners):
        owned[owners[partition][1]].append(partition)
    return owned


class _Takers:
    """Members with the same subscription, ordered by the number of their partitions."""

    def __init__(self, members: Iterable[str]) -> None:
        self._heap = [(0, member) for member in members]

    def least(self, sizes: Mapping[str, int]) -> str:
        """Return the member with the fewest partitions; among equal members the first by id.

        This corrects entries of members that have more partitions than their entry says. `put` adds an entry for a
        member that has fewer.
        """
        heap = self._heap
        while (size := sizes[heap[0][1]]) != heap[0][0]:
            heapq.heapreplace(heap, (size, heap[0][1]))
        return heap[0][1]

    def put(self, member: str, size: int) -> None:
        """Note that a member has fewer partitions than before."""
        heapq.heappush(self._heap, (size, member))


class _Division:
    """The partitions of each member while partitions are moved.

    A member may claim all partitions, and then nearly all of them move. Therefore the cost of a move does not depend on
    the number of the member's topics or partitions, but on the number of different subscriptions to its topics.
    """

    def __init__(
        self, owned: Mapping[str, Iterable[TopicPartition]], takers: Mapping[str, list[str]]
    ) -> None:
        self._numbers: dict[str, dict[str, list[int]]] = {member: {} for member in owned}
        """The partition numbers of each member by topic, in order."""
        self._sizes = dict.fromkeys(owned, 0)
        self._steps_left = MAX_STEPS
        self._most: dict[str, dict[_Takers, list[tuple[int, str]]]] = {}
        """The topics of each member that has given away partitions, by the set of subscribers, largest first.

        Each value is a heap of negative counts and names. An entry whose count has changed is dropped when it is found.
        """
        groups = {tuple(members): _Takers(members) for members in takers.values() if members}
        self._takers = {
            topic: groups[tuple(members)] for topic, members in takers.items() if members
        }
        self._groups: dict[str, list[_Takers]] = {member: [] for member in owned}
        for members, group in groups.items():
            for member in members:
                self._groups[member].append(group)
        for member, partitions in owned.items():
            for partition in partitions:
                self.give(partition, member)

    def least(self, topic: str) -> str:
        """Return the subscriber of a topic with the fewest partitions."""
        return self._takers[topic].least(self._sizes)

    def give(self, partition: TopicPartition, member: str) -> None:
        """Assign a partition to a member."""
        numbers = self._numbers[member].setdefault(partition.topic, [])
        insort(numbers, partition.partition)
        self._sizes[member] += 1
        if member in self._most:
            self._note(member, partition.topic, len(numbers))

    def _note(self, member: str, topic: str, count: int) -> None:
        heap = self._most[member].setdefault(self._takers[topic], [])
        heapq.heappush(heap, (-count, topic))

    def assignment(self) -> dict[str, list[TopicPartition]]:
        """Return the partitions of every member."""
        return {
            member: [
                TopicPartition(topic, number)
                for topic, numbers in sorted(topics.items())
                for number in numbers
            ]
            for member, topics in self._numbers.items()
        }

    def even_out(self) -> None:
        """Move single partitions to members that have at least two fewer, until there are no such members.

        A member with the most partitions gives one away each time, so no partition moves away and back.
        """
        givers = [(-size, member) for member, size in self._sizes.items()]
        heapq.heapify(givers)
        fixed: set[str] = set()
        """The members that cannot give away a partition now."""
        while givers:
            size, giver = givers[0]
            if -size != self._sizes[giver]:
                heapq.heapreplace(givers, (-self._sizes[giver], giver))
                continue
            taker = None if giver in fixed else self._give_one(giver)
            if taker is None:
                heapq.heappop(givers)
                fixed.add(giver)
                continue
            for member in (taker, *fixed):
                heapq.heappush(givers, (-self._sizes[member], member))
            fixed.clear()
        if self._steps_left < 0:
            self._spread()

    def _spread(self) -> None:
        """Assign the partitions above the average anew, each to the subscriber with the fewest partitions.

        This is cheaper than the search for the best moves, but moves partitions that could have stayed.
        """
        average = -(-sum(self._sizes.values()) // len(self._sizes))
        self._most.clear()
        free: list[TopicPartition] = []
        for member, topics in self._numbers.items():
            surplus = self._sizes[member] - average
            for topic in sorted(topics) if surplus > 0 else ():
                while topics[topic] and surplus > 0:
                    free.append(TopicPartition(topic, topics[topic].pop()))
                    surplus -= 1
                if not topics[topic]:
                    del topics[topic]
            if self._sizes[member] > average:
                self._sizes[member] = average
                for group in self._groups[member]:
                    group.put(member, average)
        for partition in free:
            self.give(partition, self.least(partition.topic))

    def _give_one(self, giver: str) -> str | None:
        """Move one partition to a member with fewer; return that member, or None if there is none."""
        topics = self._numbers[giver]
        if giver not in self._most:
            self._most[giver] = {}
            for topic, numbers in topics.items():
                self._note(giver, topic, len(numbers))
        self._steps_left -= len(self._most[giver]) + len(self._groups[giver])
        if self._steps_left < 0:
            return None
        best: tuple[int, int, str, str] | None = None
        for takers, heap in self._most[giver].items():
            while heap and -heap[0][0] != len(topics.get(heap[0][1], ())):
                heapq.heappop(heap)
            if heap:
                least = takers.least(self._sizes)
                # Among several topics, the one of which the member has the most partitions.
                found = (self._sizes[least], *heap[0], least)
                best = found if best is None else min(best, found)
        if best is None or best[0] + 1 >= self._sizes[giver]:
            return None
        _, _, topic, taker = best
        numbers = topics[topic]
        self.give(TopicPartition(topic, numbers.pop()), taker)
        if numbers:
            self._note(giver, topic, len(numbers))
        else:
            del topics[topic]
        self._sizes[giver] -= 1
        for group in self._groups[giver]:
            group.put(giver, self._sizes[giver])
        return taker
