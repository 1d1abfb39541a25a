"""A consumer group in memory: the content of its keys in the log. Only replay changes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from headrace.core.coordinator.state.consumer_records import (
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
from headrace.core.coordinator.state.memory import GROUP_BYTES, MEMBER_BYTES, TEXT_BYTES
from headrace.core.coordinator.state.subscription import size_of

Wish = tuple[tuple[str, ...], str | None]
"""The subscription of a member: the names of topics, and a regular expression or None."""

K = TypeVar("K")
V = TypeVar("V")

NEW_MEMBER = Current()
NOTHING_ASSIGNED: Partitions = frozenset()
FIRST_EPOCH = 1
"""The epoch of a group before its first member joins, as in Kafka 4.3."""
LEFT_STATIC_EPOCH = -2
"""The epoch of a static member that has left and may join again."""


class ConsumerGroupState(Enum):
    """The states of a consumer group, with the names that clients receive."""

    EMPTY = "Empty"
    """The group has no members."""
    ASSIGNING = "Assigning"
    """The target is older than the group epoch. The next heartbeat computes a new one."""
    RECONCILING = "Reconciling"
    """Some members do not own their target assignment yet."""
    STABLE = "Stable"
    """Every member owns its target assignment."""


class ConsumerGroup:
    """A group of the server-side protocol.

    The last three attributes are soft state, which a crash loses.

    Attributes:
        group_id: The id of the group.
        epoch: The group epoch.
        metadata_hash: The hash of the subscribed topics, at the time of `epoch`.
        assignment_epoch: The group epoch for which `targets` was computed.
        assigned_at_ms: The time at which `targets` was computed.
        members: The metadata of each member, by member id.
        targets: The target assignment of each member, by member id.
        current: The current assignment of each member, by member id.
        regexes: The topics that each regular expression of a member matches.
        owners: The member that owns a partition: the partition is assigned to it, or not revoked yet.
        instances: Member ids by instance id.
        wishes: The number of members with each subscription. A group has few different subscriptions.
        classic_members: The ids of the members of the classic protocol.
        protocols: The number of classic members that support each protocol.
        checked: The `TopicsView.changes` with which the group was last compared; -1: never.
        counted_bytes: The value of `held_bytes` when the group was last counted.
        resolved: The `TopicsView.changes` with which each regular expression was last resolved.
    """

    __slots__ = (
        "_members_bytes",
        "_stored",
        "assigned_at_ms",
        "assignment_epoch",
        "checked",
        "classic_members",
        "counted_bytes",
        "current",
        "epoch",
        "group_id",
        "instances",
        "members",
        "metadata_hash",
        "owners",
        "protocols",
        "regexes",
        "resolved",
        "targets",
        "wishes",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_at_ms = 0
        self.members: dict[str, MemberMetadata] = {}
        self.targets: dict[str, Partitions] = {}
        self.current: dict[str, Current] = {}
        self.regexes: dict[str, tuple[str, ...]] = {}
        self.owners: dict[Partition, str] = {}
        self.instances: dict[str, str] = {}
        self.wishes: Counter[Wish] = Counter()
        self.classic_members: set[str] = set()
        self.protocols: Counter[str] = Counter()
        self.checked = -1
        self.resolved: dict[str, int] = {}
        self.counted_bytes = 0
        self._members_bytes = 0
        self._stored: set[type[ConsumerRecord]] = set()

    # --- replay ---

    def replay(self, record: ConsumerRecord) -> None:
        """Apply one record to the group."""
        if isinstance(record, GroupEpoch):
            self.epoch, self.metadata_hash = record.epoch or 0, record.metadata_hash
            self._note(GroupEpoch, stored=record.epoch is not None)
        elif isinstance(record, TargetEpoch):
            self.assignment_epoch, self.assigned_at_ms = record.epoch or 0, record.timestamp_ms
            self._note(TargetEpoch, stored=record.epoch is not None)
        elif isinstance(record, MemberRecord):
            self._replay_member(record.member_id, record.member)
        elif isinstance(record, TargetMember):
            _set(self.targets, record.member_id, record.partitions)
        elif isinstance(record, CurrentMember):
            self._replay_current(record.member_id, record.current)
        else:
            _set(self.regexes, record.regex, record.topics)
            # The new topics may be older than the last resolution, so that the expression is resolved again.
            self.resolved.pop(record.regex, None)

    def _replay_member(self, member_id: str, member: MemberMetadata | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            self._members_bytes -= member_bytes(before)
            _count(self.wishes, [wish_of(before)], -1)
            if before.instance_id and self.instances.get(before.instance_id) == member_id:
                del self.instances[before.instance_id]
            if before.classic is not None:
                self.classic_members.discard(member_id)
                _count(self.protocols, before.classic.names, -1)
        _set(self.members, member_id, member)
        if member is not None:
            self._members_bytes += member_bytes(member)
            _count(self.wishes, [wish_of(member)], 1)
            if member.instance_id:
                self.instances[member.instance_id] = member_id
            if member.classic is not None:
                self.classic_members.add(member_id)
                _count(self.protocols, member.classic.names, 1)

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
        """Whether the log has no record of the group."""
        return not (self._stored or self.members or self.targets or self.current or self.regexes)

    # --- queries ---

    @property
    def held_bytes(self) -> int:
        """The memory of the group and its members in bytes, estimated from their metadata."""
        return GROUP_BYTES + self._members_bytes

    @property
    def state(self) -> ConsumerGroupState:
        """The state of the group."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(map(self.is_reconciled, self.members)):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_reconciled(self, member_id: str) -> bool:
        """Return whether a member owns its whole target assignment."""
        current = self.holding(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.assignment_epoch

    def holding(self, member_id: str) -> Current:
        """Return the current assignment of a member; `NEW_MEMBER` for a member without one."""
        return self.current.get(member_id, NEW_MEMBER)

    def target(self, member_id: str) -> Partitions:
        """Return the target assignment of a member; empty for a member without one."""
        return self.targets.get(member_id, NOTHING_ASSIGNED)

    def wishes_after(
        self, leaving: Iterable[str], joining: MemberMetadata | None = None
    ) -> Collection[Wish]:
        """Return the subscriptions that remain when `leaving` leave, and `joining` joins (None: no member joins)."""
        wishes = Counter(self.wishes)
        wishes.subtract(wish_of(self.members[m]) for m in leaving if m in self.members)
        wishes.update([wish_of(joining)] if joining is not None else ())
        return [wish for wish, count in wishes.items() if count > 0]

    @property
    def subscribed(self) -> frozenset[str]:
        """The names of the topics to which members are subscribed."""
        return topics_of(self.wishes, self.regexes)

    def supports_any(self, protocols: Iterable[str]) -> bool:
        """Return whether all classic members support one of these protocols."""
        return any(self.protocols[name] == len(self.classic_members) for name in protocols)

    def tombstones(self) -> Iterator[ConsumerRecord]:
        """Yield the tombstones of the group and all its members."""
        group_id = self.group_id
        for member_id in dict.fromkeys([*self.current, *self.targets, *self.members]):
            yield from self.member_tombstones(member_id)
        for regex in self.regexes:
            yield ResolvedRegex(group_id, regex, None)
        yield TargetEpoch(group_id, None)
        yield GroupEpoch(group_id, None)

    def member_tombstones(self, member_id: str) -> Iterator[ConsumerRecord]:
        """Yield the tombstones of a member."""
        yield CurrentMember(self.group_id, member_id, None)
        yield TargetMember(self.group_id, member_id, None)
        yield MemberRecord(self.group_id, member_id, None)


def wish_of(member: MemberMetadata) -> Wish:
    """Return the subscription of a member."""
    return member.topics, member.regex


def member_bytes(member: MemberMetadata) -> int:
    """Return the memory of a member in bytes, estimated from its metadata."""
    texts = (member.instance_id, member.rack_id, member.client_id, member.client_host, member.regex)
    said = sum(len(text) for text in texts if text is not None)
    topics = sum(map(len, member.topics)) + TEXT_BYTES * len(member.topics)
    classic = 0 if member.classic is None else size_of(member.classic.protocols)
    return MEMBER_BYTES + said + topics + classic


def topics_of(wishes: Iterable[Wish], regexes: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the names of the subscribed topics, with those that the regular expressions match."""
    topics: set[str] = set()
    for names, regex in wishes:
        topics.update(names, () if regex is None else regexes.get(regex, ()))
    return frozenset(topics)


def _held(current: Current) -> Partitions:
    return current.assigned | current.revoking


def _count(counts: Counter[K], keys: Iterable[K], by: int) -> None:
    for key in keys:
        counts[key] += by
        if not counts[key]:
            del counts[key]


def _set(entries: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
