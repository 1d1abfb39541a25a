"""Rebalances of classic groups: begin one, wait for members to join, complete the join phase.

A rebalance in five steps, and what a crash of the coordinator after each leaves:

1. A member joins, leaves or expires. The group becomes PREPARING_REBALANCE, in memory only. The members receive
   REBALANCE_IN_PROGRESS with their heartbeats. After a crash the last generation is still valid, and the coordinator
   notices the change again.
2. Members send JoinGroup, and their requests are parked. After a crash they repeat JoinGroup: followers of the
   generation receive the same generation again, the leader begins the rebalance again, and new members are unknown and
   join as new.
3. All members have joined, or the rebalance timeout has passed. The coordinator writes the next generation, without
   assignments. When the record is durable, the coordinator answers all members, so that no two generations have the
   same number. A crash before the record is durable is a crash in step 2. After a later crash, members repeat JoinGroup
   with the same metadata and receive the generation, or continue with step 4, without another rebalance.
4. Members send SyncGroup, and their requests are parked. The leader's request has the assignment, which the coordinator
   writes.
5. When that record is durable, the coordinator answers all members, and the group is STABLE. After a crash the members
   repeat SyncGroup.
"""

from __future__ import annotations

from headrace.core.coordinator.runtime import NOTHING, Result
from headrace.core.coordinator.state.classic_group import (
    ClassicGroup,
    ClassicGroupMember,
    Rebalance,
    select_protocol,
)
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import Generation, GenerationRecord
from headrace.core.coordinator.state.shard import JOIN, SESSION, SYNC, GroupShard
from headrace.errors import ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.sync_group import SyncGroupResponse

RETRY_MS = 1_000
"""The least pause before the coordinator tries again to complete a join phase, in milliseconds."""

MAX_GENERATION = 2**31 - 1


def prepare_or_complete(
    shard: GroupShard, group: ClassicGroup, reason: str, now_ms: int
) -> Result[None]:
    """Begin a rebalance; if one is being prepared, complete it if all members have joined."""
    if group.state is GroupState.PREPARING_REBALANCE:
        return complete_if_all_joined(shard, group, now_ms)
    return prepare(shard, group, reason, now_ms)


def rejoin(shard: GroupShard, group_id: str, reason: str, now_ms: int) -> Result[None]:
    """Begin a rebalance of a group that has members, unless a rebalance is being prepared."""
    group = shard.classic_groups.get(group_id)
    if group is None or not group.members or group.state is GroupState.PREPARING_REBALANCE:
        return NOTHING
    return prepare(shard, group, reason, now_ms)


def prepare(shard: GroupShard, group: ClassicGroup, reason: str, now_ms: int) -> Result[None]:
    """Begin a rebalance of a group."""
    for member in group.members.values():
        cancelled = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        if shard.answer_sync(member, cancelled):
            shard.reset_session(group, member, now_ms)
    group.pending_sync.clear()
    shard.timers.cancel(shard.timer(SYNC, group))
    shard.journal.info(
        "group_rebalance_began",
        group=group.group_id,
        generation=group.generation.number,
        reason=reason,
    )
    if group.state is not GroupState.EMPTY:
        group.rebalance = Rebalance(initial=False)
        _set_join_timer(shard, group, now_ms + group.rebalance_timeout_ms)
        return complete_if_all_joined(shard, group, now_ms)
    # The group is new or was empty. Members often join at about the same time, so the join phase waits for a delay.
    delay_ms = shard.config.group_initial_rebalance_delay_ms
    group.rebalance = Rebalance(
        initial=True,
        delay_ms=delay_ms,
        remaining_ms=max(group.rebalance_timeout_ms - delay_ms, 0),
    )
    if delay_ms == 0:
        return complete(shard, group, now_ms)
    _set_join_timer(shard, group, now_ms + delay_ms)
    return NOTHING


def complete_if_all_joined(shard: GroupShard, group: ClassicGroup, now_ms: int) -> Result[None]:
    """Complete the join phase if all members have joined. An initial rebalance waits for its delay instead."""
    rebalance = group.rebalance
    if rebalance is None or rebalance.initial or not group.all_joined:
        return NOTHING
    return complete(shard, group, now_ms)


def join_phase_timed_out(shard: GroupShard, group: ClassicGroup, now_ms: int) -> Result[None]:
    """Complete the join phase with the members that have joined, or extend the initial delay."""
    rebalance = group.rebalance
    if rebalance is None:
        return NOTHING
    if rebalance.initial and rebalance.new_member_added and rebalance.remaining_ms > 0:
        rebalance.new_member_added = False
        delay_ms = min(shard.config.group_initial_rebalance_delay_ms, rebalance.remaining_ms)
        rebalance.remaining_ms = max(rebalance.remaining_ms - rebalance.delay_ms, 0)
        rebalance.delay_ms = delay_ms
        _set_join_timer(shard, group, now_ms + delay_ms)
        return NOTHING
    return complete(shard, group, now_ms)


def complete(shard: GroupShard, group: ClassicGroup, now_ms: int) -> Result[None]:
    """Write the next generation. Its members are those that have joined, and all static members."""
    staying = [
        member
        for member in group.members.values()
        if member.awaiting_join is not None or member.instance_id is not None
    ]
    leader = _elect_leader(group, staying)
    if leader is None and (staying or not group.is_stored):
        return _nobody_joined(shard, group, now_ms)
    generation = _next_generation(group, staying, leader, now_ms)
    missing = [member.member_id for member in group.members.values() if member not in staying]

    def after(error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            _could_not_complete(shard, group, error, now_ms)
            return
        shard.timers.cancel(shard.timer(JOIN, group))
        for member_id in missing:
            shard.timers.cancel(shard.timer(SESSION, group, member_id))
            shard.member_gone(group.group_id, member_id)
        shard.journal.info(
            "group_generation_began",
            group=group.group_id,
            generation=generation.number,
            members=len(generation.members),
            removed=missing,
        )
        if generation.members:
            shard.await_syncs(group, now_ms)
        for member in group.members.values():
            shard.reset_session(group, member, now_ms)
            member.is_new = False
            shard.answer_join(member, current_generation(group, member))

    return Result(None, (GenerationRecord(group.group_id, generation),), after)


def _nobody_joined(shard: GroupShard, group: ClassicGroup, now_ms: int) -> Result[None]:
    for member in list(group.members.values()):
        if member.instance_id is None:
            shard.remove_member(group, member.member_id)
    if group.members:
        # Static members stay until their sessions expire, even if they have not joined. Try again later.
        _set_join_timer(shard, group, now_ms + max(group.rebalance_timeout_ms, RETRY_MS))
        return NOTHING
    # All members of the new group have left before its first generation: there is nothing to write.
    group.rebalance = None
    shard.timers.cancel(shard.timer(JOIN, group))
    shard.forget_if_void(group.group_id)
    return NOTHING


def current_generation(group: ClassicGroup, member: ClassicGroupMember) -> JoinGroupResponse:
    """Return the JoinGroup response for the current generation. The leader's response lists the members."""
    generation = group.generation
    return JoinGroupResponse(
        generation_id=generation.number,
        protocol_type=generation.protocol_type,
        protocol_name=generation.protocol_name,
        leader=generation.leader or "",
        member_id=member.member_id,
        members=joined_members(generation) if group.is_leader(member.member_id) else [],
    )


def joined_members(generation: Generation) -> list[JoinGroupResponseMember]:
    """Return the members of a generation with their metadata, from which the leader computes the assignment."""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.subscription,
        )
        for member in generation.members
    ]


def _elect_leader(group: ClassicGroup, staying: list[ClassicGroupMember]) -> str | None:
    joined = [member.member_id for member in staying if member.awaiting_join is not None]
    if group.generation.leader in joined:
        return group.generation.leader
    return joined[0] if joined else None


def _next_generation(
    group: ClassicGroup, staying: list[ClassicGroupMember], leader: str | None, now_ms: int
) -> Generation:
    protocol_name = select_protocol(staying)
    assert protocol_name is not None or not staying, "members without a common protocol"
    number = group.generation.number
    return Generation(
        number=number + 1 if number < MAX_GENERATION else 1,
        state=GroupState.COMPLETING_REBALANCE if staying else GroupState.EMPTY,
        protocol_type=staying[0].protocol_type if staying else group.protocol_type,
        protocol_name=protocol_name,
        leader=leader,
        state_timestamp_ms=now_ms,
        members=tuple(member.stored(protocol_name or "", b"") for member in staying),
    )


def _could_not_complete(
    shard: GroupShard, group: ClassicGroup, error: ErrorCode, now_ms: int
) -> None:
    # The durable state is unchanged. All members receive an error and join again, and the rebalance is retried.
    for member in group.members.values():
        joined = shard.answer_join(
            member, JoinGroupResponse(error_code=error, member_id=member.member_id)
        )
        if joined:
            shard.reset_session(group, member, now_ms)
            member.is_new = False
    if group.rebalance is not None:
        group.rebalance.initial = False
    _set_join_timer(shard, group, now_ms + max(group.rebalance_timeout_ms, RETRY_MS))


def _set_join_timer(shard: GroupShard, group: ClassicGroup, deadline_ms: int) -> None:
    shard.timers.set(shard.timer(JOIN, group), deadline_ms)
