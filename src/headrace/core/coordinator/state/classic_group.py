"""A classic group in memory: its durable generation, and soft state about members.

`ClassicGroup.generation` is durable: an immutable value that only `replay` replaces. All other state is soft and lost
in a crash. `members` is the working membership. Between rebalances it has the members of the generation. While a
rebalance is prepared, members are added and removed, and the next generation is built from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.memory import GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES
from headrace.core.coordinator.state.records import Generation, StoredMember
from headrace.core.coordinator.state.subscription import GroupSubscription, Protocol, size_of
from headrace.deferred import Deferred
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupResponse

CONSUMER_PROTOCOL_TYPE = "consumer"

NO_GENERATION = Generation(
    number=0,
    state=GroupState.EMPTY,
    protocol_type="",
    protocol_name=None,
    leader=None,
    state_timestamp_ms=-1,
)
"""The generation of a group before its first rebalance. The log has no record of the group, except offsets."""


class Origin(NamedTuple):
    """The client that sent a request."""

    api_version: int
    client_id: str
    client_host: str


class ClassicGroupMember:
    """A member of the working membership."""

    __slots__ = (
        "_protocols",
        "_texts_bytes",
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocol_type",
        "protocols_bytes",
        "protocols_complete",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocol_type: str,
        protocols: tuple[Protocol, ...],
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocol_type = protocol_type
        self.protocols_bytes = 0
        """The size in bytes of the names and metadata of its protocols."""
        self.protocols = protocols
        self._texts_bytes = sum(map(len, (member_id, instance_id or "", client_id, client_host)))
        self.protocols_complete = True
        """Whether all protocols are known. False after loading: a stored generation has only the elected protocol."""
        self.assignment = b""
        """The assignment of the current generation, encoded by the leader; empty before the first one."""
        self.awaiting_join: Deferred[JoinGroupResponse] | None = None
        """The response to the member's JoinGroup while it waits for the rebalance; None at other times."""
        self.awaiting_sync: Deferred[SyncGroupResponse] | None = None
        """The response to the member's SyncGroup while it waits for the leader's; None at other times."""
        self.is_new = False
        """Whether the member has not received a generation yet. A new member does not send heartbeats."""

    @classmethod
    def restored(cls, stored: StoredMember, generation: Generation) -> ClassicGroupMember:
        """Return the member for a stored member that was read from the log."""
        member = cls(
            stored.member_id,
            instance_id=stored.instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            protocol_type=generation.protocol_type,
            protocols=(Protocol(generation.protocol_name or "", stored.subscription),),
        )
        member.protocols_complete = False
        return member

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """The protocols that the member supports, in its order of preference."""
        return self._protocols

    @protocols.setter
    def protocols(self, protocols: tuple[Protocol, ...]) -> None:
        self._protocols = protocols
        self.protocols_bytes = size_of(protocols)

    @property
    def held_bytes(self) -> int:
        """The memory of this member, in bytes."""
        return MEMBER_BYTES + self._texts_bytes + self.protocols_bytes + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """Whether a parked request proves that the member is alive. The first JoinGroup of a new member does not."""
        return not self.is_new and (
            self.awaiting_join is not None or self.awaiting_sync is not None
        )

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if the member does not support the protocol."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def matches(self, protocols: tuple[Protocol, ...]) -> bool:
        """Return whether protocols are the same as those with which the member joined before.

        For a member that was read from the log only the elected protocol is known, so only that one is compared.
        """
        if self.protocols_complete:
            return self.protocols == protocols
        return all(protocol in protocols for protocol in self.protocols)

    def equals(self, stored: StoredMember, generation: Generation) -> bool:
        """Return whether a stored member is equal to this one, so that soft state about this member is still valid."""
        return (
            self.protocol_type == generation.protocol_type
            and self.stored(generation.protocol_name or "", stored.assignment) == stored
        )

    def stored(self, protocol_name: str, assignment: bytes) -> StoredMember:
        """Return the part of the member that a generation stores."""
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


class Rebalance:
    """A rebalance that is being prepared."""

    __slots__ = ("delay_ms", "initial", "new_member_added", "remaining_ms")

    def __init__(self, *, initial: bool, delay_ms: int = 0, remaining_ms: int = 0) -> None:
        self.initial = initial
        """Whether the rebalance began in an empty group. It then waits for the initial delay, not for members."""
        self.delay_ms = delay_ms
        """The initial delay until the rebalance ends, in milliseconds; 0 if the group was not empty."""
        self.remaining_ms = remaining_ms
        """The time by which the initial delay may still be extended while members keep joining, in milliseconds."""
        self.new_member_added = False
        """Whether a member has joined since the initial delay began or was extended."""


class ClassicGroup:
    """A group of the classic protocol."""

    __slots__ = (
        "checked",
        "counted_bytes",
        "generation",
        "group_id",
        "members",
        "pending",
        "pending_sync",
        "rebalance",
        "rebalances_for_unowned",
        "static_members",
        "subscribed",
        "topics_hash",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.counted_bytes = 0
        """The value of `held_bytes` when the group was last counted."""
        self.generation = NO_GENERATION
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids of the working membership by group instance id."""
        self.pending: dict[str, None] = {}
        """Member ids that were returned with MEMBER_ID_REQUIRED and have not joined yet, oldest first."""
        self.pending_sync: set[str] = set()
        """Members of the generation that have not sent SyncGroup since it began."""
        self.rebalance: Rebalance | None = None
        self.checked = -1
        """The `TopicsView.changes` with which the generation was last compared; -1: never."""
        self.topics_hash: int | None = None
        """The hash of the subscribed topics at the last comparison with the assignment; None: never compared."""
        self.subscribed: GroupSubscription | None = None
        """The subscriptions of the generation's members together; None until first used."""
        self.rebalances_for_unowned = False
        """Whether the group rebalances because of partitions without owner, and the leader has not assigned since."""

    # --- durable state ---

    def replay(self, generation: Generation) -> None:
        """Replace the generation, and set the working membership to its members.

        Members that stay keep their soft state, such as a parked request and all their protocols.
        """
        self.generation = generation
        self.rebalance = None
        self.checked = -1
        self.subscribed = None
        before = self.members
        self.members = {}
        for stored in generation.members:
            member = before.get(stored.member_id)
            if member is None or not member.equals(stored, generation):
                member = ClassicGroupMember.restored(stored, generation)
            member.assignment = stored.assignment
            self.members[stored.member_id] = member
        self.static_members = {
            member.instance_id: member.member_id
            for member in self.members.values()
            if member.instance_id is not None
        }
        self.pending_sync &= self.members.keys()

    @property
    def is_stored(self) -> bool:
        """Whether the log has a generation of the group."""
        return self.generation is not NO_GENERATION

    @property
    def is_void(self) -> bool:
        """Whether the group has no state that would be lost with it, apart from offsets."""
        return not (self.is_stored or self.members or self.pending or self.rebalance is not None)

    # --- queries ---

    @property
    def held_bytes(self) -> int:
        """The memory that the group uses, in bytes, without its offsets."""
        if self.is_void:
            return 0
        members = sum(member.held_bytes for member in self.members.values())
        return GROUP_BYTES + members + PENDING_BYTES * len(self.pending)

    @property
    def state(self) -> GroupState:
        """The state of the generation, or PREPARING_REBALANCE during a rebalance."""
        return self.generation.state if self.rebalance is None else GroupState.PREPARING_REBALANCE

    @property
    def protocol_type(self) -> str:
        """The protocol type of the members, or of the last generation; empty if the group never had members."""
        for member in self.members.values():
            return member.protocol_type
        return self.generation.protocol_type

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members, in milliseconds."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def joined_count(self) -> int:
        """The number of members whose JoinGroup is parked."""
        return sum(member.awaiting_join is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether the join phase can complete because every member has joined.

        The phase waits for pending member ids only while the group has members. If all members have left, the group is
        empty, and a pending member id starts a new rebalance when it joins.
        """
        return not self.members or (
            not self.pending and all(m.awaiting_join is not None for m in self.members.values())
        )

    def is_leader(self, member_id: str) -> bool:
        """Return whether this member is the leader of the present generation."""
        return self.generation.leader == member_id

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member with these protocols shares one with all present members."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in names)
        supporters = count_supporters(self.members.values())
        return protocol_type == self.protocol_type and any(
            supporters[name] == len(self.members) for name in names
        )

    # --- soft state ---

    def add(self, member: ClassicGroupMember) -> None:
        """Add a member to the working membership."""
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Remove a member, or a pending member id, from the working membership."""
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if (
            member is not None
            and member.instance_id is not None
            and self.static_members.get(member.instance_id) == member_id
        ):
            del self.static_members[member.instance_id]
        return member


def count_supporters(members: Iterable[ClassicGroupMember]) -> Counter[str]:
    """Return how many members support each protocol."""
    return Counter(
        name for member in members for name in {protocol.name for protocol in member.protocols}
    )


def select_protocol(members: Iterable[ClassicGroupMember]) -> str | None:
    """Return the protocol with the most votes among those that all members support.

    Each member votes for the first of these in its own order. On a tie the choice of the first voter wins.
    """
    voters = list(members)
    supporters = count_supporters(voters)
    votes: Counter[str] = Counter()
    for member in voters:
        common = (p.name for p in member.protocols if supporters[p.name] == len(voters))
        votes.update([choice] if (choice := next(common, None)) is not None else ())
    return max(votes, key=votes.__getitem__, default=None)
