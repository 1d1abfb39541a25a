"""JoinGroup: a client becomes a member, or a member joins the next generation."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.coordinator.classic.membership import validate_member
from headrace.core.coordinator.classic.rebalance import (
    complete_if_all_joined,
    current_generation,
    joined_members,
    prepare,
    prepare_or_complete,
)
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicGroupMember,
    Origin,
    select_protocol,
)
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.memory import GROUP_BYTES, PENDING_BYTES
from headrace.core.coordinator.state.records import GenerationRecord
from headrace.core.coordinator.state.shard import SESSION, GroupShard
from headrace.core.coordinator.state.subscription import Protocol, size_of, subscribed_topics
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

JoinResult = Result[JoinGroupResponse]

MEMBER_ID_REQUIRED_VERSION = 4
"""The first JoinGroup version in which a new member must join again with the id in the response (KIP-394)."""

SKIP_ASSIGNMENT_VERSION = 9
"""The first JoinGroup version whose response can instruct the leader to skip the assignment (KIP-814)."""

GROUP_NAME_MAX = 255
"""The largest number of characters of a group's name in a log line."""

REASON_MAX = 200
"""The largest number of characters of a member's reason to join in a log line."""

MEMBER_ID_PREFIX_MAX = 255
"""The largest number of characters of a client id or instance id in a member id. It makes the id readable."""


class Joining:
    """One JoinGroup request, in the same form for all versions."""

    __slots__ = (
        "instance_id",
        "member_id",
        "origin",
        "protocol_type",
        "protocols",
        "reason",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(self, origin: Origin, request: JoinGroupRequest) -> None:
        self.origin = origin
        self.member_id = request.member_id
        self.instance_id = request.group_instance_id
        self.session_timeout_ms = request.session_timeout_ms
        # Version 0 has no rebalance timeout: the session timeout is used for both.
        self.rebalance_timeout_ms = (
            request.session_timeout_ms
            if request.rebalance_timeout_ms < 0
            else request.rebalance_timeout_ms
        )
        self.protocol_type = request.protocol_type
        self.protocols = tuple(
            Protocol(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols
        )
        self.reason = (request.reason or "not provided")[:REASON_MAX]

    @property
    def names(self) -> list[str]:
        """The names of the member's protocols, in the member's order of preference."""
        return [protocol.name for protocol in self.protocols]

    def refused(self, error: ErrorCode, member_id: str = "") -> JoinResult:
        """Return a response with an error."""
        return Result(JoinGroupResponse(error_code=error, member_id=member_id))

    def update(self, shard: GroupShard, member: ClassicGroupMember) -> Deferred[JoinGroupResponse]:
        """Update a member from this request, and park the request."""
        member.protocols = self.protocols
        member.protocols_complete = True
        member.session_timeout_ms = self.session_timeout_ms
        member.rebalance_timeout_ms = self.rebalance_timeout_ms
        deferred: Deferred[JoinGroupResponse] = Deferred()
        shard.park_join(member, deferred)
        return deferred

    def new_member(self, member_id: str) -> ClassicGroupMember:
        """Return a new member with the metadata of this request."""
        return ClassicGroupMember(
            member_id,
            instance_id=self.instance_id,
            client_id=self.origin.client_id,
            client_host=self.origin.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocol_type=self.protocol_type,
            protocols=self.protocols,
        )


def join_group(
    shard: GroupShard, origin: Origin, request: JoinGroupRequest, now_ms: int
) -> JoinResult:
    """Handle a JoinGroup request. The caller has checked the group id and the session timeout."""
    joining = Joining(origin, request)
    group = shard.classic_groups.get(request.group_id)
    if group is None:
        if joining.member_id:
            return joining.refused(ErrorCode.UNKNOWN_MEMBER_ID, joining.member_id)
        group = shard.create_group(request.group_id)
    try:
        if not _has_space(shard, group, joining):
            return _group_is_full(shard, group, joining, now_ms)
        error = shard.memory.refusal(group, _added_bytes(group, joining))
        if error is not ErrorCode.NONE:
            return _too_large(shard, group, joining, error)
        if not group.supports_protocols(joining.protocol_type, joining.names):
            return joining.refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, joining.member_id)
        return _member_of_its_kind(joining)(shard, group, joining, now_ms)
    finally:
        shard.forget_if_void(group.group_id)


def _member_of_its_kind(
    joining: Joining,
) -> Callable[[GroupShard, ClassicGroup, Joining, int], JoinResult]:
    if joining.member_id:
        return _known_member
    return _new_dynamic_member if joining.instance_id is None else _new_static_member


def _added_bytes(group: ClassicGroup, joining: Joining) -> int:
    """Return the memory in bytes that a group needs in addition when a member joins or changes its metadata."""
    member_id = group.static_members.get(joining.instance_id or "", joining.member_id)
    member = group.members.get(member_id)
    if member is not None:
        return size_of(joining.protocols) - member.protocols_bytes
    own = joining.new_member(joining.member_id).held_bytes
    if joining.member_id in group.pending:
        own -= PENDING_BYTES
    return own if group.counted_bytes else own + GROUP_BYTES


def _too_large(
    shard: GroupShard, group: ClassicGroup, joining: Joining, error: ErrorCode
) -> JoinResult:
    shard.journal.warning(
        "group_member_refused",
        group=group.group_id[:GROUP_NAME_MAX],
        error=error.name,
        member_bytes=size_of(joining.protocols),
        group_bytes=group.held_bytes,
        all_groups_bytes=shard.memory.groups_bytes,
    )
    return joining.refused(error, joining.member_id)


def _has_space(shard: GroupShard, group: ClassicGroup, joining: Joining) -> bool:
    limit = shard.config.group_max_size
    member = group.members.get(joining.member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        # A member that has joined already stays. The membership may exceed the limit, if the limit was lowered. Only
        # members that have joined are counted, so that the last members to join are refused.
        has_joined = member is not None and member.awaiting_join is not None
        return has_joined or group.joined_count < limit
    if joining.instance_id in group.static_members:
        return True  # the member replaces an existing one
    return member is not None or len(group.members) < limit


def _group_is_full(
    shard: GroupShard, group: ClassicGroup, joining: Joining, now_ms: int
) -> JoinResult:
    if joining.member_id:
        shard.remove_member(group, joining.member_id)
    refusal = JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")
    return complete_if_all_joined(shard, group, now_ms).with_response(refusal)


def _new_dynamic_member(
    shard: GroupShard, group: ClassicGroup, joining: Joining, now_ms: int
) -> JoinResult:
    member_id = new_member_id(shard, joining.origin.client_id)
    if joining.origin.api_version < MEMBER_ID_REQUIRED_VERSION:
        return _add(shard, group, joining, member_id, now_ms)
    # Otherwise a client that gives up and sends JoinGroup again would leave one pending id behind each time.
    while len(group.pending) >= shard.config.pending_members_max:
        shard.remove_member(group, next(iter(group.pending)))
    group.pending[member_id] = None
    deadline_ms = now_ms + joining.session_timeout_ms
    shard.timers.set(shard.timer(SESSION, group, member_id), deadline_ms)
    return joining.refused(ErrorCode.MEMBER_ID_REQUIRED, member_id)


def new_member_id(shard: GroupShard, prefix: str) -> str:
    """Return a member id that no member has."""
    digits = shard.entropy.uuid().hex()
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{prefix[:MEMBER_ID_PREFIX_MAX]}-{uuid}"


def _known_member(
    shard: GroupShard, group: ClassicGroup, joining: Joining, now_ms: int
) -> JoinResult:
    if joining.member_id in group.pending and joining.instance_id is None:
        return _add(shard, group, joining, joining.member_id, now_ms)
    error = validate_member(group, joining.member_id, joining.instance_id)
    if error is not ErrorCode.NONE:
        return joining.refused(error, joining.member_id)
    member = group.members[joining.member_id]
    unchanged = member.matches(joining.protocols)
    # The leader's JoinGroup in a stable group requests a new assignment, for example because topics have changed.
    answered_by_present_generation = unchanged and (
        group.state is GroupState.COMPLETING_REBALANCE
        or (group.state is GroupState.STABLE and not group.is_leader(member.member_id))
    )
    if answered_by_present_generation:
        member.protocols = joining.protocols
        member.protocols_complete = True
        shard.reset_session(group, member, now_ms)
        return Result(current_generation(group, member))
    deferred = joining.update(shard, member)
    reason = f"member {member.member_id} joins again: {joining.reason}"
    return prepare_or_complete(shard, group, reason, now_ms).with_response(deferred)


def _add(
    shard: GroupShard, group: ClassicGroup, joining: Joining, member_id: str, now_ms: int
) -> JoinResult:
    member = joining.new_member(member_id)
    member.is_new = True
    if group.rebalance is not None and group.rebalance.initial:
        group.rebalance.new_member_added = True
    group.add(member)
    deferred = joining.update(shard, member)
    # The new member has no session yet: it cannot send heartbeats while its first JoinGroup is parked, and the
    # coordinator does not notice a closed connection. The timer bounds how long a member that has disconnected stays.
    timeout_ms = shard.config.new_member_join_timeout_ms
    shard.reset_session(group, member, now_ms, timeout_ms=timeout_ms)
    reason = f"member {member_id} joins: {joining.reason}"
    return prepare_or_complete(shard, group, reason, now_ms).with_response(deferred)


# --- static members (KIP-345) ---


def _new_static_member(
    shard: GroupShard, group: ClassicGroup, joining: Joining, now_ms: int
) -> JoinResult:
    instance_id = joining.instance_id or ""
    member_id = new_member_id(shard, instance_id)
    old_member_id = group.static_members.get(instance_id)
    if old_member_id is None:
        return _add(shard, group, joining, member_id, now_ms)
    if group.state is GroupState.STABLE and _changes_nothing(group, joining, old_member_id):
        return _take_place(shard, group, joining, (old_member_id, member_id), now_ms)
    deferred = _replace(shard, group, joining, (old_member_id, member_id), now_ms)
    if group.state is GroupState.PREPARING_REBALANCE:
        result = complete_if_all_joined(shard, group, now_ms)
    else:
        # In CompletingRebalance the leader may be assigning partitions to the old member id now.
        reason = f"static member {instance_id} joins as {member_id}: {joining.reason}"
        result = prepare(shard, group, reason, now_ms)
    return result.with_response(deferred)


def _changes_nothing(group: ClassicGroup, joining: Joining, old_member_id: str) -> bool:
    """Return whether a restarted static member would get the same assignment as before."""
    generation = group.generation
    substitute = joining.new_member(old_member_id)
    members = {**group.members, old_member_id: substitute}
    if select_protocol(members.values()) != generation.protocol_name:
        return False
    if generation.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return True
    # A consumer's metadata also has its owned partitions, which a restart always changes. So only topics are compared.
    before = subscribed_topics(group.members[old_member_id].metadata(generation.protocol_name))
    return before == subscribed_topics(substitute.metadata(generation.protocol_name))


def _replace(
    shard: GroupShard, group: ClassicGroup, joining: Joining, ids: tuple[str, str], now_ms: int
) -> Deferred[JoinGroupResponse]:
    """Replace a static member's id in the working membership by a new id, and park the JoinGroup."""
    old_member_id, member_id = ids
    old = group.members[old_member_id]
    shard.fence(group, old)
    member = joining.new_member(member_id)
    member.assignment = old.assignment
    group.members = {
        (member_id if key == old_member_id else key): (member if key == old_member_id else value)
        for key, value in group.members.items()
    }
    group.static_members[joining.instance_id or ""] = member_id
    shard.reset_session(group, member, now_ms)
    return joining.update(shard, member)


def _take_place(
    shard: GroupShard, group: ClassicGroup, joining: Joining, ids: tuple[str, str], now_ms: int
) -> JoinResult:
    """Write the same generation with the new member id instead of the old one, without a rebalance."""
    old_member_id, member_id = ids
    generation = group.generation
    old = group.members[old_member_id]
    stored = joining.new_member(member_id).stored(generation.protocol_name or "", old.assignment)
    was_leader = group.is_leader(old_member_id)
    updated = generation._replace(
        leader=member_id if was_leader else generation.leader,
        members=tuple(
            stored if member.member_id == old_member_id else member for member in generation.members
        ),
    )
    response = JoinGroupResponse(
        generation_id=updated.number,
        protocol_type=updated.protocol_type,
        protocol_name=updated.protocol_name,
        leader=updated.leader or "",
        member_id=member_id,
    )
    if was_leader and joining.origin.api_version >= SKIP_ASSIGNMENT_VERSION:
        response.skip_assignment = True
        response.members = joined_members(updated)
    elif was_leader:
        # The leader must not compute an assignment that would be discarded. A client before version 9 therefore gets
        # its former member id as the leader's id, and acts as a follower.
        response.leader = old_member_id

    def after(error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            return
        shard.fence(group, old)
        member = group.members[member_id]
        member.protocols = joining.protocols
        member.protocols_complete = True
        shard.reset_session(group, member, now_ms)

    return Result(response, (GenerationRecord(group.group_id, updated),), after)
