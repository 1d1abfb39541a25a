"""The built-in server-side assignors, `uniform` and `range`.

An assignor is any object with a `name` and an `assign`. The broker configuration names further ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from headrace.core.coordinator.state.consumer_records import Partition, Partitions


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[bytes]
    """The ids of the existing topics that the member subscribes to."""
    assigned: Partitions = frozenset()
    """The partitions that the present target assigns to the member."""
    instance_id: str | None = None
    rack_id: str | None = None


Assignment = Mapping[str, Collection[Partition]]
"""Partitions by member id. A missing member has no partitions."""


class ServerAssignor(Protocol):
    """Computes which member of a group reads which partition."""

    name: str

    def assign(self, members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Assignment:
        """Assign every partition of the subscribed topics to one of the topic's subscribers.

        Args:
            members: The members by member id; never empty.
            topics: The partition counts of the subscribed topics, by topic id.
        """


class ServerRangeAssignor:
    """Assigns each member a range of consecutive partitions of each topic, in the order of member ids.

    If topics have the same size and the same subscribers, partitions with the same number go to the same member, so
    that they can be joined. Static members come first, by instance id, so that their restart moves no partition.
    """

    name = "range"

    def assign(self, members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Assignment:
        """Assign every partition to one of the subscribers of its topic."""

        def place(member_id: str) -> tuple[bool, str]:
            instance_id = members[member_id].instance_id
            return instance_id is None, instance_id or member_id

        ordered = sorted(members, key=place)
        assignment: dict[str, list[Partition]] = {}
        for topic_id, count in topics.items():
            subscribers = [m for m in ordered if topic_id in members[m].topics]
            start = 0
            for position, member_id in enumerate(subscribers):
                share, rest = divmod(count, len(subscribers))
                end = start + share + (position < rest)
                mine = assignment.setdefault(member_id, [])
                mine += ((topic_id, index) for index in range(start, end))
                start = end
        return assignment


class ServerUniformAssignor:
    """Assigns partitions as evenly as the subscriptions allow, and moves as few as possible."""

    name = "uniform"

    def assign(self, members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Assignment:
        """Assign every partition to one of the subscribers of its topic."""
        wanted = {subscriber.topics for subscriber in members.values()}
        partitions = {(topic, index) for topic, count in topics.items() for index in range(count)}
        held = {
            member_id: {p for p in subscriber.assigned & partitions if p[0] in subscriber.topics}
            for member_id, subscriber in members.items()
        }
        if len(wanted) == 1:
            return _share_alike(held, partitions)
        return _share_by_topic(members, held, partitions)


def _share_alike(held: Mapping[str, set[Partition]], partitions: set[Partition]) -> Assignment:
    """Assign partitions to members with equal subscriptions: each gets the same number, or one more."""
    share, rest = divmod(len(partitions), len(held))
    shares: dict[str, list[Partition]] = {}
    # The members with the most partitions keep one more, as long as any is left.
    for member_id in sorted(held, key=lambda m: (-len(held[m]), m)):
        limit = share + (rest > 0 and len(held[member_id]) > share)
        rest -= limit - share
        shares[member_id] = sorted(held[member_id])[:limit]
    unassigned = sorted(partitions.difference(*shares.values()), reverse=True)
    for member_id in sorted(shares):
        mine = shares[member_id]
        limit = share
        if rest and len(mine) <= share:
            limit, rest = share + 1, rest - 1
        while len(mine) < limit:
            mine.append(unassigned.pop())
    return shares


def _share_by_topic(
    members: Mapping[str, Subscriber],
    held: Mapping[str, set[Partition]],
    partitions: set[Partition],
) -> Assignment:
    """Assign partitions to members with different subscriptions."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    free = partitions.difference(*held.values())
    loads = _Loads(members, held)
    # Topics with the fewest subscribers come first: later topics can still even out the loads.
    for topic_id, index in sorted(free, key=lambda p: (len(subscribers.get(p[0], ())), p)):
        if topic_id in subscribers:
            taker = loads.lightest(topic_id)
            held[taker].add((topic_id, index))
            loads.changed(taker)
    _even_out(held, loads)
    return held


class _Loads:
    """The number of partitions of each member, and for each topic the subscriber with the fewest."""

    def __init__(
        self, members: Mapping[str, Subscriber], held: Mapping[str, set[Partition]]
    ) -> None:
        self._members = members
        self._held = held
        self._heaps: dict[bytes, list[tuple[int, str]]] = {}
        for member_id in sorted(members):
            self.changed(member_id)

    def changed(self, member_id: str) -> None:
        """Note a new number of partitions of a member; older heap entries of the member become invalid."""
        load = len(self._held[member_id])
        for topic_id in self._members[member_id].topics:
            heappush(self._heaps.setdefault(topic_id, []), (load, member_id))

    def lightest(self, topic_id: bytes) -> str:
        heap = self._heaps[topic_id]
        while heap[0][0] != len(self._held[heap[0][1]]):
            heappop(heap)
        return heap[0][1]


def _even_out(held: Mapping[str, set[Partition]], loads: _Loads) -> None:
    """Move single partitions to members that have at least two fewer, until no such move is left.

    Every move decreases the sum of the squared loads, so the loop ends.
    """
    moved = True
    while moved:
        moved = False
        for member_id in sorted(held, key=lambda m: -len(held[m])):
            for topic_id in sorted({topic_id for topic_id, _ in held[member_id]}):
                moved |= _give_away(held, member_id, topic_id, loads)


def _give_away(
    held: Mapping[str, set[Partition]], giver: str, topic_id: bytes, loads: _Loads
) -> bool:
    def takes() -> bool:
        return len(held[giver]) - len(held[loads.lightest(topic_id)]) >= 2

    if not takes():
        return False
    for partition in sorted((p for p in held[giver] if p[0] == topic_id), reverse=True):
        taker = loads.lightest(topic_id)
        held[giver].remove(partition)
        held[taker].add(partition)
        loads.changed(giver)
        loads.changed(taker)
        if not takes():
            break
    return True


OWN_ASSIGNORS: Final[Mapping[str, ServerAssignor]] = {
    "uniform": ServerUniformAssignor(),
    "range": ServerRangeAssignor(),
}
"""The built-in assignors by name; the default comes first."""
