"""Heartbeat, LeaveGroup, and expired sessions of classic groups."""

from __future__ import annotations

from headrace.core.coordinator.classic.coverage import has_new_partitions
from headrace.core.coordinator.classic.rebalance import complete_if_all_joined, prepare
from headrace.core.coordinator.runtime import NOTHING, Result
from headrace.core.coordinator.state.classic_group import ClassicGroup
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.stops import StopState
from headrace.errors import ErrorCode
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.leave_group import (
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

NEW_PARTITIONS = "topics that it subscribes to have partitions that no member reads"


def validate_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Return NONE if the member is in the working membership and has this instance id, otherwise the error."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def heartbeat(
    shard: GroupShard, request: HeartbeatRequest, now_ms: int
) -> Result[HeartbeatResponse]:
    """Extend a member's session, and return whether a rebalance is being prepared.

    The heartbeat begins a rebalance if the group's topics have partitions that no member reads.
    """
    group = shard.classic_groups.get(request.group_id)
    error = _heartbeat_error(group, request)
    if group is not None and error in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}:
        member = group.members[request.member_id]
        if not member.is_new:
            shard.reset_session(group, member, now_ms)
        stop = shard.stops.must_stop(group.group_id, member.member_id)
        response = HeartbeatResponse(error_code=error, headrace_stop=stop)
        if error is ErrorCode.NONE and has_new_partitions(shard, group):
            response.error_code = ErrorCode.REBALANCE_IN_PROGRESS
            return prepare(shard, group, NEW_PARTITIONS, now_ms).with_response(response)
        return Result(response)
    return Result(HeartbeatResponse(error_code=error))


def _heartbeat_error(group: ClassicGroup | None, request: HeartbeatRequest) -> ErrorCode:
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = validate_member(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation.number:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave_group(
    shard: GroupShard, group_id: str, leaving: list[MemberIdentity], now_ms: int
) -> Result[LeaveGroupResponse]:
    """Remove members, each with its own error code, and begin one rebalance for all of them."""
    group = shard.classic_groups.get(group_id)
    responses = []
    removed = []
    for identity in leaving:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _leave(shard, group, identity)
        if error is ErrorCode.NONE:
            removed.append(identity.member_id or str(identity.group_instance_id))
        responses.append(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=error,
            )
        )
    response = LeaveGroupResponse(members=responses)
    if group is None or not removed:
        return Result(response)
    reason = f"members left: {', '.join(removed)}"
    return after_removal(shard, group, reason, now_ms).with_response(response)


def _leave(shard: GroupShard, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
    member_id = identity.member_id
    if not member_id:
        # An administrator may send the instance id of a static member without its member id.
        current = group.static_members.get(identity.group_instance_id or "")
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = current
    elif member_id not in group.pending:
        error = validate_member(group, member_id, identity.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
    shard.stops.ends(group.group_id, member_id, StopState.STOPPED)
    shard.remove_member(group, member_id)
    return ErrorCode.NONE


def session_expired(
    shard: GroupShard, group: ClassicGroup, member_id: str, now_ms: int
) -> Result[None]:
    """Remove a member whose session has expired, unless a request of the member is parked."""
    member = group.members.get(member_id)
    if member is None and member_id not in group.pending:
        return NOTHING
    if member is not None and member.is_waiting:
        return NOTHING  # the session begins again when the parked request is answered
    shard.remove_member(group, member_id)
    shard.journal.info("group_member_expired", group=group.group_id, member=member_id)
    return after_removal(shard, group, f"session of {member_id} expired", now_ms)


def sync_phase_timed_out(shard: GroupShard, group: ClassicGroup, now_ms: int) -> Result[None]:
    """Remove the members that did not send SyncGroup within the rebalance timeout."""
    if group.rebalance is not None or not group.pending_sync:
        return NOTHING
    missing = sorted(group.pending_sync)
    for member_id in missing:
        shard.remove_member(group, member_id)
    return after_removal(shard, group, f"no SyncGroup from {', '.join(missing)}", now_ms)


def after_removal(shard: GroupShard, group: ClassicGroup, reason: str, now_ms: int) -> Result[None]:
    """Begin a rebalance of the remaining members, or complete the rebalance that waited for the removed members."""
    if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
        if group.generation.members and all(
            member.member_id in group.members for member in group.generation.members
        ):
            return NOTHING  # only pending member ids were removed
        return prepare(shard, group, reason, now_ms)
    result = complete_if_all_joined(shard, group, now_ms)
    shard.forget_if_void(group.group_id)
    return result
