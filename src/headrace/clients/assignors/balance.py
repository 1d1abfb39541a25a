"""Balancing with memory: who has too much gives up the surplus, and nothing else moves."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.clients.assignors.base import MemberSubscription
from headrace.types import TopicPartition

MAX_LOOKS: Final = 1_000_000
"""Looks at sets of members while single partitions move: about a second. After them all surplus is given out anew."""

Claims = Mapping[str, tuple[int, tuple[TopicPartition, ...]]]
"""Member id to the generation in which it was given its partitions, and these."""


def balance(
    members: Mapping[str, MemberSubscription],
    partition_counts: Mapping[str, int],
    claims: Claims,
) -> dict[str, list[TopicPartition]]:
    """Give out every partition so that no move from one member to another would make their counts more equal.

    Where all members want the same topics, that means counts over all topics that differ by at most one. Counts may
    differ by more where members want so many different sets of topics that `MAX_LOOKS` is reached. Partitions
    stay where they were as far as that allows; where members are equal, the first by member id gets it.

    Args:
        members: Member id to its subscription.
        partition_counts: The number of partitions of each topic that exists.
        claims: What each member had.
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
    # Those that few want go first: the others can make up for it.
    for partition in sorted(free, key=lambda name: (len(takers[name.topic]), name)):
        division.give(partition, division.least(partition.topic))
    division.even_out()
    return division.assignment()


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


class _Takers:
    """Members that want the same topics, and which of them has the fewest partitions."""

    def __init__(self, members: Iterable[str]) -> None:
        self._heap = [(0, member) for member in members]

    def least(self, sizes: Mapping[str, int]) -> str:
        """Return the member with the fewest partitions, of equal ones the first.

        Entries of members that have more by now are corrected when they come up. Who has fewer has to be put in.
        """
        heap = self._heap
        while (size := sizes[heap[0][1]]) != heap[0][0]:
            heapq.heapreplace(heap, (size, heap[0][1]))
        return heap[0][1]

    def put(self, member: str, size: int) -> None:
        """Take note that a member has fewer partitions than before."""
        heapq.heappush(self._heap, (size, member))


class _Division:
    """The partitions of each member while partitions are being moved.

    A member may claim all partitions, and then nearly all of them move. So the cost of a move depends on the number of
    sets of members that want topics of the giver, and not on the number of its topics or partitions.
    """

    def __init__(
        self, owned: Mapping[str, Iterable[TopicPartition]], takers: Mapping[str, list[str]]
    ) -> None:
        self._numbers: dict[str, dict[str, list[int]]] = {member: {} for member in owned}
        """The partition numbers of each member by topic, in order."""
        self._sizes = dict.fromkeys(owned, 0)
        self._looks_left = MAX_LOOKS
        self._most: dict[str, dict[_Takers, list[tuple[int, str]]]] = {}
        """The topics of each member that has given partitions, by the set of members that want them, largest first.

        A heap of negative counts and names. Entries whose count has changed are dropped when they come up.
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
        """Return who has the fewest partitions of those that want the topic."""
        return self._takers[topic].least(self._sizes)

    def give(self, partition: TopicPartition, member: str) -> None:
        """Let a member have a partition."""
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
        """Move single partitions to members with at least two fewer, until there are none.

        It is always one with the most that gives, so that nobody gives what it would have to get again.
        """
        givers = [(-size, member) for member, size in self._sizes.items()]
        heapq.heapify(givers)
        fixed: set[str] = set()
        """Members that cannot give, as things stand."""
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
        if self._looks_left < 0:
            self._spread()

    def _spread(self) -> None:
        """Give out anew what members have beyond the average, each partition to who has fewest of those that want it.

        That is cheaper than the search for the best moves, and moves partitions that could have stayed.
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
        """Move one partition to who should have it; return that member, None where nobody should."""
        topics = self._numbers[giver]
        if giver not in self._most:
            self._most[giver] = {}
            for topic, numbers in topics.items():
                self._note(giver, topic, len(numbers))
        self._looks_left -= len(self._most[giver]) + len(self._groups[giver])
        if self._looks_left < 0:
            return None
        best: tuple[int, int, str, str] | None = None
        for takers, heap in self._most[giver].items():
            while heap and -heap[0][0] != len(topics.get(heap[0][1], ())):
                heapq.heappop(heap)
            if heap:
                least = takers.least(self._sizes)
                # Of several topics the one that the member has most of, so that it keeps a bit of each.
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
