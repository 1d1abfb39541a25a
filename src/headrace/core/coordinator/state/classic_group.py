"""A classic group in memory: its durable generation, and the soft state of members that join, wait and leave.

`Group.generation` is durable: one immutable value that only `Group.replay` replaces. All else is soft. `members` is the
working membership: between rebalances it is the generation's, while a rebalance is prepared members are added to and
removed from it, and the next generation is made of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.memory import GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES
from headrace.core.coordinator.state.records import Generation, StoredMember
from headrace.core.coordinator.state.subscription import GroupSubscription, Protocol, size_of
from headrace.core.deferred import Deferred
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
"""What a group has before its first rebalance: nothing of it is in the log, but for offsets perhaps."""


class Origin(NamedTuple):
    """Who sent a request, as far as the coordinator cares."""

    api_version: int
    client_id: str
    client_host: str


class Member:
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
        """The size of what it says of its protocols."""
        self.protocols = protocols
        self._texts_bytes = sum(map(len, (member_id, instance_id or "", client_id, client_host)))
        self.protocols_complete = True
        """False after loading: a stored generation has only the metadata of its own protocol."""
        self.assignment = b""
        self.awaiting_join: Deferred[JoinGroupResponse] | None = None
        self.awaiting_sync: Deferred[SyncGroupResponse] | None = None
        self.is_new = False
        """Whether it has never been told a generation; it does not send heartbeats yet."""

    @classmethod
    def restored(cls, stored: StoredMember, generation: Generation) -> Member:
        """Return a member of a generation that was read from the log."""
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
        """The protocols that it supports, in its order of preference."""
        return self._protocols

    @protocols.setter
    def protocols(self, protocols: tuple[Protocol, ...]) -> None:
        self._protocols = protocols
        self.protocols_bytes = size_of(protocols)

    @property
    def held_bytes(self) -> int:
        """What it holds in memory."""
        return MEMBER_BYTES + self._texts_bytes + self.protocols_bytes + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """Whether a request of it is parked, which proves it alive; a new member's first JoinGroup does not."""
        return not self.is_new and (
            self.awaiting_join is not None or self.awaiting_sync is not None
        )

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return its metadata for a protocol, empty if it does not support it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def matches(self, protocols: tuple[Protocol, ...]) -> bool:
        """Whether it joins with what it joined with before.

        Of a member that was read from the log only the elected protocol is known, so only that is compared.
        """
        if self.protocols_complete:
            return self.protocols == protocols
        return all(protocol in protocols for protocol in self.protocols)

    def agrees(self, stored: StoredMember, generation: Generation) -> bool:
        """Whether a generation keeps of it what is known here, so that the rest known here is still true."""
        return (
            self.protocol_type == generation.protocol_type
            and self.stored(generation.protocol_name or "", stored.assignment) == stored
        )

    def stored(self, protocol_name: str, assignment: bytes) -> StoredMember:
        """Return what a generation keeps of it."""
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
        """It began in an empty group: it waits for its delay, not for members."""
        self.delay_ms = delay_ms
        self.remaining_ms = remaining_ms
        """How much longer the initial delay may be extended while members keep arriving."""
        self.new_member_added = False


class Group:
    """A classic group."""

    __slots__ = (
        "checked",
        "counted_bytes",
        "generation",
        "group_id",
        "members",
        "pending",
        "pending_sync",
        "rebalance",
        "seeks_readers",
        "static_members",
        "subscribed",
        "topics_hash",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.counted_bytes = 0
        """What it held when it was last counted."""
        self.generation = NO_GENERATION
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Group instance id -> member id, of the working membership."""
        self.pending: dict[str, None] = {}
        """Member ids that were handed out with MEMBER_ID_REQUIRED and have not joined yet, oldest first."""
        self.pending_sync: set[str] = set()
        """Members of the generation that have not sent SyncGroup since it began."""
        self.rebalance: Rebalance | None = None
        self.checked = -1
        """The version of the topics that the generation was last compared with."""
        self.topics_hash: int | None = None
        """Of the topics that members subscribe to, when they were last compared with what is assigned."""
        self.subscribed: GroupSubscription | None = None
        """What the members of the generation said of their topics; None until somebody needs it."""
        self.seeks_readers = False
        """Whether it rebalances because topics have partitions that nobody reads, and its leader was not asked yet."""

    # --- durable state ---

    def replay(self, generation: Generation) -> None:
        """Take over a generation, and make the working membership the generation's.

        Members that stay keep their soft state (a parked request, all the protocols they named).
        """
        self.generation = generation
        self.rebalance = None
        self.checked = -1
        self.subscribed = None
        before = self.members
        self.members = {}
        for stored in generation.members:
            member = before.get(stored.member_id)
            if member is None or not member.agrees(stored, generation):
                member = Member.restored(stored, generation)
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
        """Whether the log has a generation of it."""
        return self.generation is not NO_GENERATION

    @property
    def is_void(self) -> bool:
        """Whether nothing would be lost if it were forgotten (its offsets aside)."""
        return not (self.is_stored or self.members or self.pending or self.rebalance is not None)

    # --- queries ---

    @property
    def held_bytes(self) -> int:
        """What it holds in memory, its offsets aside."""
        if self.is_void:
            return 0
        members = sum(member.held_bytes for member in self.members.values())
        return GROUP_BYTES + members + PENDING_BYTES * len(self.pending)

    @property
    def state(self) -> GroupState:
        """Its state: the generation's, unless a rebalance is being prepared."""
        return self.generation.state if self.rebalance is None else GroupState.PREPARING_REBALANCE

    @property
    def protocol_type(self) -> str:
        """The protocol type of its members, or of the last generation; empty if it never had members."""
        for member in self.members.values():
            return member.protocol_type
        return self.generation.protocol_type

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of its members."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def joined_count(self) -> int:
        """Members whose JoinGroup is parked."""
        return sum(member.awaiting_join is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether the join phase has nobody left to wait for.

        Ids that were handed out are waited for only together with members: when all have left the group is empty,
        and whoever is still to come begins anew.
        """
        return not self.members or (
            not self.pending and all(m.awaiting_join is not None for m in self.members.values())
        )

    def is_leader(self, member_id: str) -> bool:
        """Whether this member leads the present generation."""
        return self.generation.leader == member_id

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols may be in the group together with the present members."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in names)
        supporters = count_supporters(self.members.values())
        return protocol_type == self.protocol_type and any(
            supporters[name] == len(self.members) for name in names
        )

    # --- soft state ---

    def add(self, member: Member) -> None:
        """Add a member to the working membership."""
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Remove a member, or a handed-out id, from the working membership."""
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


def count_supporters(members: Iterable[Member]) -> Counter[str]:
    """Return how many members support each protocol."""
    return Counter(
        name for member in members for name in {protocol.name for protocol in member.protocols}
    )


def select_protocol(members: Iterable[Member]) -> str | None:
    """Return the protocol of most votes among those that all members support.

    Every member votes for the first of them in its own order; on a tie the first voter's choice wins.
    """
    voters = list(members)
    supporters = count_supporters(voters)
    votes: Counter[str] = Counter()
    for member in voters:
        common = (p.name for p in member.protocols if supporters[p.name] == len(voters))
        votes.update([choice] if (choice := next(common, None)) is not None else ())
    return max(votes, key=votes.__getitem__, default=None)
