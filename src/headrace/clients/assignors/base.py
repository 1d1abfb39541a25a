"""The interface of assignors, with which the leader of a classic group assigns partitions to the members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from headrace.types import TopicPartition

Assignment = Mapping[str, list[TopicPartition]]
"""The partitions of each member, by member id."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription that a member sends to the leader of its group."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    """The partitions that the member still owns while it rebalances. Empty for members of the eager protocol."""
    generation: int = -1
    """The generation in which the member received `owned`; -1 if its subscription has no such field."""
    user_data: bytes = b""
    group_instance_id: str | None = None
    rack: str | None = None


class ExistingPartitions:
    """The existing partitions of topics. Each is one object, however many members claim it."""

    def __init__(self, partition_counts: Mapping[str, int]) -> None:
        self._counts = partition_counts
        self._known: dict[TopicPartition, TopicPartition] = {}

    def of(self, topic: str, numbers: Iterable[int]) -> Iterator[TopicPartition]:
        """Yield those of the numbered partitions of a topic that exist."""
        count = self._counts.get(topic, 0)
        for number in numbers:
            if 0 <= number < count:
                name = TopicPartition(topic, number)
                yield self._known.setdefault(name, name)


@runtime_checkable
class Assignor(Protocol):
    """Assigns partitions to members. Each consumer has an object of its own.

    Two more methods are optional: `subscription_user_data()` returns bytes (or None) for the member's subscription, and
    `on_assignment(partitions, generation)` is called with the assignment of the member.
    """

    @property
    def name(self) -> str:
        """The name by which the members of a group agree on an assignor."""

    @property
    def protocol(self) -> Literal["eager", "cooperative"]:
        """Whether members revoke all partitions before they join (eager), or only those that move (cooperative)."""

    def assign(
        self, members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int]
    ) -> Assignment:
        """Return the partitions of every member.

        Args:
            members: The subscriptions by member id.
            partition_counts: The number of partitions of each topic that exists.
        """


def members_in_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Return the members in Kafka's order: static ones by instance id, then the others by member id."""

    def rank(member: str) -> tuple[bool, str, str]:
        instance = members[member].group_instance_id
        return instance is None, instance or "", member

    return sorted(members, key=rank)


def withhold(
    assigned: Mapping[str, Iterable[TopicPartition]], members: Mapping[str, MemberSubscription]
) -> dict[str, list[TopicPartition]]:
    """Leave out partitions that another member still owns, so that no partition ever has two owners.

    (1) In generation 5 the assignor moves a partition; it is left out, so no member has it. (2) The owner finishes its
    records, commits, and joins again without the partition. (3) In generation 6 the partition goes to the new owner.
    """
    owners: dict[TopicPartition, set[str]] = {}
    for member, subscription in members.items():
        for partition in subscription.owned:
            owners.setdefault(partition, set()).add(member)
    return {
        member: [name for name in partitions if owners.get(name, {member}) == {member}]
        for member, partitions in assigned.items()
    }
