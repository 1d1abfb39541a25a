"""The removal of members that leave, or whose time has expired."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from headrace.core.coordinator.consumer.downgrade import classic_members, downgrade
from headrace.core.coordinator.runtime import NOTHING, Result
from headrace.core.coordinator.state.consumer_group import (
    LEFT_STATIC_EPOCH,
    NOTHING_ASSIGNED,
    ConsumerGroup,
    Wish,
    topics_of,
)
from headrace.core.coordinator.state.consumer_records import (
    ConsumerRecord,
    CurrentMember,
    GroupEpoch,
    MemberState,
    ResolvedRegex,
)
from headrace.core.coordinator.state.shard import (
    CONSUMER_REBALANCE,
    GroupShard,
)
from headrace.core.coordinator.state.stops import StopState
from headrace.core.coordinator.state.topics import known_topics, metadata_hash
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def leave(
    shard: GroupShard, request: ConsumerGroupHeartbeatRequest, now_ms: int
) -> Result[ConsumerGroupHeartbeatResponse]:
    """Handle the heartbeat of a member that leaves.

    Raises:
        ApiError: The group has no such member.
    """
    group = shard.consumer_groups.get(request.group_id)
    if group is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
    member_id = request.member_id
    if request.instance_id is not None:
        check_instance(group, request.instance_id, member_id)
    elif member_id not in group.members:
        raise unknown_member(group, member_id)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=request.member_epoch
    )
    if request.member_epoch == LEFT_STATIC_EPOCH:
        return _leave_for_a_while(shard, group, member_id).with_response(response)
    shard.stops.ends(group.group_id, member_id, StopState.STOPPED)
    return remove(shard, group, [member_id], now_ms).with_response(response)


def _leave_for_a_while(shard: GroupShard, group: ConsumerGroup, member_id: str) -> Result[None]:
    """Keep a static member that leaves temporarily until its session expires."""
    current = group.holding(member_id)
    left = current._replace(
        epoch=LEFT_STATIC_EPOCH,
        previous_epoch=current.epoch,
        state=MemberState.STABLE,
        revoking=NOTHING_ASSIGNED,
    )
    shard.timers.cancel(shard.consumer_timer(CONSUMER_REBALANCE, group, member_id))
    return Result(None, [CurrentMember(group.group_id, member_id, left)])


def remove(
    shard: GroupShard, group: ConsumerGroup, leaving: Collection[str], now_ms: int
) -> Result[None]:
    """Remove members. The next turn of another member assigns their partitions.

    When the last member of the KIP-848 protocol leaves, the group becomes a classic group.
    """
    members = classic_members(shard, group, leaving)
    if members is not None:
        return downgrade(shard, group, members, now_ms)
    records: list[ConsumerRecord] = []
    for member_id in leaving:
        records += group.member_tombstones(member_id)
    wishes = group.wishes_after(leaving)
    records += unused_regexes(group, wishes)
    topics = known_topics(shard.topics, topics_of(wishes, group.regexes))
    records.append(GroupEpoch(group.group_id, group.epoch + 1, metadata_hash(topics)))

    def removed(error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            for member_id in leaving:
                shard.cancel_consumer_timers(group, member_id)
                shard.member_gone(group.group_id, member_id)

    return Result(None, records, removed)


def unused_regexes(group: ConsumerGroup, wishes: Iterable[Wish]) -> Iterator[ConsumerRecord]:
    """Yield the tombstones of the regular expressions that are in none of these subscriptions."""
    used = {regex for _, regex in wishes}
    for regex in group.regexes:
        if regex not in used:
            yield ResolvedRegex(group.group_id, regex, None)


def session_expired(
    shard: GroupShard, group: ConsumerGroup, member_id: str, now_ms: int
) -> Result[None]:
    """Remove a member whose session has expired."""
    return expired(shard, group, member_id, "session", now_ms)


def rebalance_expired(
    shard: GroupShard, group: ConsumerGroup, member_id: str, now_ms: int
) -> Result[None]:
    """Remove a member that has not revoked its partitions within its rebalance timeout."""
    if group.holding(member_id).state is not MemberState.UNREVOKED:
        return NOTHING
    return expired(shard, group, member_id, "rebalance", now_ms)


def join_expired(
    shard: GroupShard, group: ConsumerGroup, member_id: str, now_ms: int
) -> Result[None]:
    """Remove a classic member that had to join again, and has not within its rebalance timeout."""
    return expired(shard, group, member_id, "join", now_ms)


def sync_expired(
    shard: GroupShard, group: ConsumerGroup, member_id: str, now_ms: int
) -> Result[None]:
    """Remove a classic member that has joined, and has sent no SyncGroup within its rebalance timeout."""
    return expired(shard, group, member_id, "sync", now_ms)


def expired(
    shard: GroupShard, group: ConsumerGroup, member_id: str, what: str, now_ms: int
) -> Result[None]:
    """Remove a member whose time has expired. `what` is the name of the expired time in the log line."""
    if member_id not in group.members:
        return NOTHING
    result = remove(shard, group, [member_id], now_ms)
    removed = result.after

    def tried(error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            shard.journal.info(
                "consumer_group_member_expired", group=group.group_id, member=member_id, by=what
            )
        else:
            # The records could not be appended, so nothing has changed. The next attempt follows after a session.
            shard.begin_consumer_session(group, member_id, now_ms)
        if removed is not None:
            removed(error)

    return Result(None, result.records, tried)


def check_instance(group: ConsumerGroup, instance_id: str, member_id: str) -> None:
    """Refuse a member that does not have the instance id of its request.

    Raises:
        ApiError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
    """
    holder = group.instances.get(instance_id)
    if holder is None:
        raise ApiError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Instance id {instance_id} is unknown.",
        )
    if holder != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}.",
        )


def unknown_member(group: ConsumerGroup, member_id: str) -> ApiError:
    """Return the error for a member id that is not in the group."""
    return ApiError(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member {member_id} is not a member of group {group.group_id}.",
    )
