"""A consumer group in memory: an image of its keys in the log, changed by replay only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TypeVar

from headrace.core.coordinator.consumer.records import (
    ConsumerRecord,
    Current,
    CurrentMember,
    GroupEpoch,
    MemberMetadata,
    MemberRecord,
    MemberState,
    Partition,
    Partitions,
    ResolvedRegex,
    TargetEpoch,
    TargetMember,
)

K = TypeVar("K")
V = TypeVar("V")

NEW_MEMBER = Current()
NOTHING_ASSIGNED: Partitions = frozenset()
FIRST_EPOCH = 1
"""The epoch of a group before anybody has joined it, as in Kafka 4.3."""
LEFT_STATIC_EPOCH = -2
"""The epoch of a static member that has left and may come back."""


class ConsumerGroupState(Enum):
    """The states of a consumer group, under the names that clients are shown."""

    EMPTY = "Empty"
    """No members."""
    ASSIGNING = "Assigning"
    """The target is older than the group epoch: the next heartbeat computes it."""
    RECONCILING = "Reconciling"
    """Members are on their way to their targets."""
    STABLE = "Stable"
    """Every member holds its target."""


class ConsumerGroup:
    """A group of the server-side protocol.

    Attributes:
        group_id: Its id.
        epoch: The group epoch.
        metadata_hash: Of the topics that members want, as of `epoch`.
        assignment_epoch: The group epoch that `targets` was computed for.
        members: What each member said about itself.
        targets: What the target gives each member.
        current: What each member holds.
        regexes: The topics that each regular expression of a member stands for.
        checked: Soft: the version of the topics that the group was last compared with.
        resolved: Soft: the version of the topics that each regular expression was last resolved with.
    """

    __slots__ = (
        "_stored",
        "assignment_epoch",
        "checked",
        "current",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "owners",
        "regexes",
        "resolved",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, MemberMetadata] = {}
        self.targets: dict[str, Partitions] = {}
        self.current: dict[str, Current] = {}
        self.regexes: dict[str, tuple[str, ...]] = {}
        self.owners: dict[Partition, str] = {}
        """Who holds a partition: by assignment, or until it has given it up."""
        self.checked = -1
        self.resolved: dict[str, int] = {}
        self._stored: set[type[ConsumerRecord]] = set()

    # --- replay ---

    def replay(self, record: ConsumerRecord) -> None:
        """Apply one record."""
        if isinstance(record, GroupEpoch):
            self.epoch, self.metadata_hash = record.epoch or 0, record.metadata_hash
            self._note(GroupEpoch, stored=record.epoch is not None)
        elif isinstance(record, TargetEpoch):
            self.assignment_epoch = record.epoch or 0
            self._note(TargetEpoch, stored=record.epoch is not None)
        elif isinstance(record, MemberRecord):
            _set(self.members, record.member_id, record.member)
        elif isinstance(record, TargetMember):
            _set(self.targets, record.member_id, record.partitions)
        elif isinstance(record, CurrentMember):
            self._replay_current(record.member_id, record.current)
        else:
            _set(self.regexes, record.regex, record.topics)

    def _replay_current(self, member_id: str, current: Current | None) -> None:
        for partition in _held(self.current.get(member_id, NEW_MEMBER)):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        _set(self.current, member_id, current)
        for partition in _held(current or NEW_MEMBER):
            self.owners[partition] = member_id

    def _note(self, kind: type[ConsumerRecord], *, stored: bool) -> None:
        (self._stored.add if stored else self._stored.discard)(kind)

    @property
    def is_void(self) -> bool:
        """Whether the log has nothing of it."""
        return not (self._stored or self.members or self.targets or self.current or self.regexes)

    # --- queries ---

    @property
    def state(self) -> ConsumerGroupState:
        """Its state."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(map(self.is_reconciled, self.members)):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_reconciled(self, member_id: str) -> bool:
        """Whether a member holds what the target gives it."""
        current = self.holding(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.assignment_epoch

    def holding(self, member_id: str) -> Current:
        """Return what a member holds."""
        return self.current.get(member_id, NEW_MEMBER)

    def target(self, member_id: str) -> Partitions:
        """Return what the target gives a member."""
        return self.targets.get(member_id, NOTHING_ASSIGNED)

    def static_member(self, instance_id: str) -> str | None:
        """Return the id of the member that has an instance id."""
        for member_id, member in self.members.items():
            if member.instance_id == instance_id:
                return member_id
        return None

    @property
    def subscribed(self) -> frozenset[str]:
        """The names of the topics that its members want."""
        return frozenset().union(
            *(topics_of(member, self.regexes) for member in self.members.values())
        )

    def tombstones(self) -> Iterator[ConsumerRecord]:
        """Yield what forgets the group, members and all."""
        group_id = self.group_id
        for member_id in dict.fromkeys([*self.current, *self.targets, *self.members]):
            yield from self.member_tombstones(member_id)
        for regex in self.regexes:
            yield ResolvedRegex(group_id, regex, None)
        yield TargetEpoch(group_id, None)
        yield GroupEpoch(group_id, None)

    def member_tombstones(self, member_id: str) -> Iterator[ConsumerRecord]:
        """Yield what forgets a member."""
        yield CurrentMember(self.group_id, member_id, None)
        yield TargetMember(self.group_id, member_id, None)
        yield MemberRecord(self.group_id, member_id, None)


def topics_of(member: MemberMetadata, regexes: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the names of the topics that a member wants."""
    resolved = () if member.regex is None else regexes.get(member.regex, ())
    return frozenset(member.topics).union(resolved)


def _held(current: Current) -> Partitions:
    return current.assigned | current.revoking


def _set(entries: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
