"""SyncGroup: the leader sends the assignment, and each member receives its part of the assignment."""

from __future__ import annotations

from headrace.core.coordinator.classic.membership import validate_member
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import ClassicGroup, ClassicGroupMember
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import GenerationRecord
from headrace.core.coordinator.state.shard import GroupShard
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

SyncResult = Result[SyncGroupResponse]


def sync_group(shard: GroupShard, request: SyncGroupRequest, now_ms: int) -> SyncResult:
    """Handle a SyncGroup request. The caller has checked the group id."""
    group = shard.classic_groups.get(request.group_id)
    if group is None:
        return Result(SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    error = _error(group, request)
    if error is not ErrorCode.NONE:
        return Result(SyncGroupResponse(error_code=error))
    member = group.members[request.member_id]
    if group.state is GroupState.STABLE:
        shard.synced(group, member)
        shard.reset_session(group, member, now_ms)
        return Result(_assignment(group, member))
    deferred: Deferred[SyncGroupResponse] = Deferred()
    shard.park_sync(member, deferred)
    shard.synced(group, member)
    if not group.is_leader(member.member_id):
        return Result(deferred)
    return _store_assignment(shard, group, request, now_ms).with_response(deferred)


def _error(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = validate_member(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    generation = group.generation
    if request.generation_id != generation.number:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in {None, generation.protocol_type} or (
        request.protocol_name not in {None, generation.protocol_name}
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _store_assignment(
    shard: GroupShard, group: ClassicGroup, request: SyncGroupRequest, now_ms: int
) -> Result[None]:
    assignments = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
    generation = group.generation
    stable = generation._replace(
        state=GroupState.STABLE,
        state_timestamp_ms=now_ms,
        members=tuple(
            member._replace(assignment=assignments.get(member.member_id, b""))
            for member in generation.members
        ),
    )
    unassigned = [m.member_id for m in generation.members if m.member_id not in assignments]

    def after(error: ErrorCode) -> None:
        if error is ErrorCode.NONE and unassigned:
            shard.journal.warning(
                "group_members_without_assignment", group=group.group_id, members=unassigned
            )
        for member in group.members.values():
            response = (
                _assignment(group, member)
                if error is ErrorCode.NONE
                else SyncGroupResponse(error_code=error)
            )
            if shard.answer_sync(member, response):
                shard.reset_session(group, member, now_ms)
        if error is not ErrorCode.NONE:
            # The generation still waits for its assignment, with the full timeout again.
            shard.await_syncs(group, now_ms)

    return Result(None, (GenerationRecord(group.group_id, stable),), after)


def _assignment(group: ClassicGroup, member: ClassicGroupMember) -> SyncGroupResponse:
    generation = group.generation
    return SyncGroupResponse(
        protocol_type=generation.protocol_type,
        protocol_name=generation.protocol_name,
        assignment=member.assignment,
    )
