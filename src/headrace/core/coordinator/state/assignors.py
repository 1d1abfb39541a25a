"""The assignors that the coordinator has itself: `uniform` and `range`.

An assignor is any object with a `name` and an `assign`; the user's own are given to the coordinator by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from headrace.core.coordinator.state.consumer_records import Partition, Partitions


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[bytes]
    """The ids of the topics it wants; all of them exist."""
    assigned: Partitions = frozenset()
    """What the present target gives it."""
    instance_id: str | None = None
    rack_id: str | None = None


Assignment = Mapping[str, Collection[Partition]]
"""Member id -> partitions; members may be left out."""


class Assignor(Protocol):
    """Decides who reads what."""

    name: str

    def assign(self, members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Assignment:
        """Give every partition that somebody wants to one of those who want its topic.

        Args:
            members: By member id; never empty.
            topics: How many partitions each topic has that a member wants, by topic id.
        """


class RangeAssignor:
    """Gives each member a run of neighbouring partitions of each of its topics, in the order of the members' ids.

    Partitions of the same number go to the same member where topics have the same size and the same subscribers, so
    that they can be joined. Static members come first, by instance id: a restart of one moves nothing.
    """

    name = "range"

    def assign(self, members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Assignment:
        """Give every partition to one of those who want its topic."""

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


class UniformAssignor:
    """Gives members as equal numbers of partitions as their subscriptions allow, and moves as few as it can."""

    name = "uniform"

    def assign(self, members: Mapping[str, Subscriber], topics: Mapping[bytes, int]) -> Assignment:
        """Give every partition to one of those who want its topic."""
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
    """Share among members that all want the same: each gets the same number, or one more."""
    share, rest = divmod(len(partitions), len(held))
    shares: dict[str, list[Partition]] = {}
    # Those who have most keep one more, as long as there is one.
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
    """Share among members that want different topics."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    free = partitions.difference(*held.values())
    loads = _Loads(members, held)
    # Those with the fewest possible owners first: the others can still even out what these make uneven.
    for topic_id, index in sorted(free, key=lambda p: (len(subscribers.get(p[0], ())), p)):
        if topic_id in subscribers:
            taker = loads.lightest(topic_id)
            held[taker].add((topic_id, index))
            loads.changed(taker)
    _even_out(held, loads)
    return held


class _Loads:
    """How many partitions members hold, and who of a topic's subscribers holds fewest, the first by id."""

    def __init__(
        self, members: Mapping[str, Subscriber], held: Mapping[str, set[Partition]]
    ) -> None:
        self._members = members
        self._held = held
        self._heaps: dict[bytes, list[tuple[int, str]]] = {}
        for member_id in sorted(members):
            self.changed(member_id)

    def changed(self, member_id: str) -> None:
        """A member holds more, or less, than before; what heaps say of it besides counts no more."""
        load = len(self._held[member_id])
        for topic_id in self._members[member_id].topics:
            heappush(self._heaps.setdefault(topic_id, []), (load, member_id))

    def lightest(self, topic_id: bytes) -> str:
        heap = self._heaps[topic_id]
        while heap[0][0] != len(self._held[heap[0][1]]):
            heappop(heap)
        return heap[0][1]


def _even_out(held: Mapping[str, set[Partition]], loads: _Loads) -> None:
    """Move single partitions to members that have at least two fewer, until there is none left to move.

    Every move makes the sum of the squares of the loads smaller, so it ends.
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


OWN_ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "uniform": UniformAssignor(),
    "range": RangeAssignor(),
}
"""Those that need not be loaded, the default first."""
