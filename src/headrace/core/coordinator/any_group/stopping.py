"""Stopping one member of a group at the request of an administrator.

1. The administrator's client sends LeaveGroup with the tagged field 26738, and repeats it until the response has the
   outcome. The first request begins the stop and its deadline.
2. The responses to the member's heartbeats have the tagged field 26738 until the member leaves. A parked JoinGroup of
   the member is answered with the field at once.
3. The member finishes its records, commits, leaves, and does not join again. The outcome is STOPPED.
4. A member that has not left at the deadline, for example because its client does not know the field, is removed. The
   outcome is REMOVED. Such a member may join again.

Stops are in memory only (`stops`). After the coordinator was loaded again, the next request of the administrator's
client begins the stop again, with the remaining time as the timeout.
"""

from __future__ import annotations

from headrace.core.coordinator.classic.membership import after_removal, validate_member
from headrace.core.coordinator.consumer import removal
from headrace.core.coordinator.runtime import NOTHING, Result, TimerKey
from headrace.core.coordinator.state.classic_group import ClassicGroup
from headrace.core.coordinator.state.consumer_group import ConsumerGroup
from headrace.core.coordinator.state.shard import STOP, GroupShard
from headrace.core.coordinator.state.stops import Stop, StopState
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.leave_group import (
    HeadraceStop,
    HeadraceStopped,
    LeaveGroupResponse,
)


def stop_member(
    shard: GroupShard, group_id: str, wanted: HeadraceStop, now_ms: int
) -> Result[LeaveGroupResponse]:
    """Begin to stop a member, or return the progress of the stop."""
    return Result(LeaveGroupResponse(headrace_stop=_stop(shard, group_id, wanted, now_ms)))


def _stop(shard: GroupShard, group_id: str, wanted: HeadraceStop, now_ms: int) -> HeadraceStopped:
    member_id, error = _identify(shard, group_id, wanted)
    if error is ErrorCode.UNKNOWN_MEMBER_ID or wanted.again:
        # (1) A member is removed, (2) it joins again under its id, (3) the client asks how (1) ended.
        end = shard.stops.end_of(group_id, member_id)
        if end is not None:
            return HeadraceStopped(state=end, member_id=member_id, remaining_ms=0)
    if error is not ErrorCode.NONE:
        return HeadraceStopped(error_code=error, member_id=member_id)
    stop = shard.stops.begin(group_id, member_id, now_ms + max(wanted.timeout_ms, 0))
    _answer_parked_join(shard, group_id, member_id, stop)
    shard.timers.set(TimerKey(STOP, shard.partition, group_id, member_id), stop.deadline_ms)
    return HeadraceStopped(
        state=StopState.STOPPING,
        member_id=member_id,
        told=stop.notified,
        remaining_ms=max(stop.deadline_ms - now_ms, 0),
    )


def _answer_parked_join(shard: GroupShard, group_id: str, member_id: str, stop: Stop) -> None:
    """Answer the member's parked JoinGroup, once: a member that waits in a JoinGroup may send no heartbeats.

    A client that does not know the field sends JoinGroup again, and waits as before.
    """
    group = shard.classic_groups.get(group_id)
    member = None if group is None else group.members.get(member_id)
    if member is None or member.awaiting_join is None or stop.notified:
        return
    stop.notified = True
    answer = JoinGroupResponse(
        error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member_id, headrace_stop=True
    )
    shard.answer_join(member, answer)


def _identify(shard: GroupShard, group_id: str, wanted: HeadraceStop) -> tuple[str, ErrorCode]:
    """Return the member id, and NONE or the error. The request may have the instance id of the member only."""
    member_id, instance_id = wanted.member_id, wanted.group_instance_id
    consumers = shard.consumer_groups.get(group_id)
    if consumers is not None:
        member_id = member_id or consumers.instances.get(instance_id or "", "")
        return member_id, _consumer_error(consumers, member_id, instance_id)
    group = shard.classic_groups.get(group_id)
    if group is None:
        return member_id, ErrorCode.UNKNOWN_MEMBER_ID
    member_id = member_id or group.static_members.get(instance_id or "", "")
    return member_id, validate_member(group, member_id, instance_id)


def _consumer_error(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        if instance_id is not None:
            removal.check_instance(group, instance_id, member_id)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def deadline_passed(shard: GroupShard, timer: TimerKey, now_ms: int) -> Result[None]:
    """Remove a member that has not left at its deadline."""
    group_id, member_id = timer.group_id, timer.member_id
    stop = shard.stops.find(group_id, member_id)
    if stop is None:
        return NOTHING
    shard.stops.ends(group_id, member_id, StopState.REMOVED)
    shard.journal.info(
        "group_member_removed_by_force", group=group_id, member=member_id, told=stop.notified
    )
    consumers = shard.consumer_groups.get(group_id)
    if consumers is not None:
        return _remove_from_consumers(shard, consumers, member_id, now_ms)
    group = shard.classic_groups.get(group_id)
    if group is None or member_id not in group.members:
        shard.stops.gone(group_id, member_id)
        return NOTHING
    return _remove_from_classic(shard, group, member_id, now_ms)


def _remove_from_classic(
    shard: GroupShard, group: ClassicGroup, member_id: str, now_ms: int
) -> Result[None]:
    shard.remove_member(group, member_id)
    return after_removal(shard, group, f"{member_id} did not stop in time", now_ms)


def _remove_from_consumers(
    shard: GroupShard, group: ConsumerGroup, member_id: str, now_ms: int
) -> Result[None]:
    if member_id not in group.members:
        shard.stops.gone(group.group_id, member_id)
        return NOTHING
    return removal.expired(shard, group, member_id, "stop", now_ms)
