"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The coordinator computes the assignment, so there is no leader, and no member waits for the others. A JoinGroup is one
turn of the member (`turn`), and its response has the member epoch as the generation. SyncGroup returns the assignment.
The response to Heartbeat is REBALANCE_IN_PROGRESS when the member needs another turn: to reach a newer epoch, to
confirm a revocation, or to receive partitions that other members have revoked. A member with an eager assignor owns
nothing when it joins; a member with a cooperative assignor sends the partitions that it still owns.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.coordinator.classic.join import (
    MEMBER_ID_REQUIRED_VERSION,
    join_group,
    new_member_id,
)
from headrace.core.coordinator.consumer.downgrade import (
    begin_classic,
    classic_assignment,
    classic_generation,
    classic_members,
    schedule_rejoin,
)
from headrace.core.coordinator.consumer.identity import identify_classic
from headrace.core.coordinator.consumer.removal import check_instance, remove, unknown_member
from headrace.core.coordinator.consumer.turn import Turn, after_turn
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroupMember,
    Origin,
)
from headrace.core.coordinator.state.consumer_group import ConsumerGroup, topics_of, wish_of
from headrace.core.coordinator.state.consumer_records import (
    ClassicMemberFields,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    Partitions,
)
from headrace.core.coordinator.state.records import GenerationRecord, GroupRecord
from headrace.core.coordinator.state.shard import CONSUMER_SYNC, GroupShard
from headrace.core.coordinator.state.stops import StopState
from headrace.core.coordinator.state.subscription import (
    ClassicSubscription,
    NamedPartitions,
    Protocol,
    read_subscription,
)
from headrace.core.coordinator.state.topics import TopicsView, known_topics, metadata_hash
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import (
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

# --- JoinGroup ---


def join(
    shard: GroupShard, origin: Origin, request: JoinGroupRequest, now_ms: int
) -> Result[JoinGroupResponse]:
    """Handle a JoinGroup request. A consumer group without members becomes a classic group."""
    group = shard.consumer_groups[request.group_id]
    try:
        if not group.members:
            return _join_deserted(shard, group, origin, request, now_ms)
        return _join(shard, group, origin, request, now_ms)
    except ApiError as error:
        return Result(JoinGroupResponse(error_code=error.code, member_id=""))


def _join(
    shard: GroupShard,
    group: ConsumerGroup,
    origin: Origin,
    request: JoinGroupRequest,
    now_ms: int,
) -> Result[JoinGroupResponse]:
    protocols = tuple(Protocol(p.name, bytes(p.metadata)) for p in request.protocols)
    said = _check_protocols(group, request.protocol_type, protocols)
    member_id = request.member_id or new_member_id(
        shard, request.group_instance_id or origin.client_id
    )
    identity = identify_classic(group, request, member_id, shard.config.group_consumer_max_size)
    if (
        not request.member_id
        and request.group_instance_id is None
        and origin.api_version >= MEMBER_ID_REQUIRED_VERSION
    ):
        required = ErrorCode.MEMBER_ID_REQUIRED
        return Result(JoinGroupResponse(error_code=required, member_id=member_id))
    member = _updated(identity.member, origin, request, said, protocols)
    if identity.replaces is not None:
        members = classic_members(shard, group, [identity.replaces], (member_id, member))
        if members is not None:
            return _Downgrade(shard, group, identity.replaces, member_id, members).run(
                member, now_ms
            )
    turn = Turn(shard, group, identity, member, now_ms)
    current = turn.run(_by_id(said.owned, shard.topics), lambda _topic: False)
    response = JoinGroupResponse(
        generation_id=current.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocols[0].name,
        member_id=member_id,
    )
    return Result(response, turn.records, after_turn(turn, current))


def _join_deserted(
    shard: GroupShard,
    group: ConsumerGroup,
    origin: Origin,
    request: JoinGroupRequest,
    now_ms: int,
) -> Result[JoinGroupResponse]:
    if request.member_id:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    result = join_group(shard, origin, request, now_ms)
    return Result(result.response, [*group.tombstones(), *result.records], result.after)


def _check_protocols(
    group: ConsumerGroup, protocol_type: str, protocols: tuple[Protocol, ...]
) -> ClassicSubscription:
    """Return the subscription of a member. All classic members must have a protocol in common.

    Raises:
        ApiError: INCONSISTENT_GROUP_PROTOCOL.
    """
    said = read_subscription(protocols[0].metadata) if protocols else None
    common = group.supports_any(protocol.name for protocol in protocols)
    if protocol_type != CONSUMER_PROTOCOL_TYPE or said is None or not common:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return said


def _updated(
    member: MemberMetadata,
    origin: Origin,
    request: JoinGroupRequest,
    said: ClassicSubscription,
    protocols: tuple[Protocol, ...],
) -> MemberMetadata:
    # Version 0 has no rebalance timeout: the session timeout is used for both.
    rebalance_timeout_ms = request.rebalance_timeout_ms
    return MemberMetadata(
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=said.rack_id or member.rack_id,
        client_id=origin.client_id,
        client_host=origin.client_host,
        topics=said.topics,
        rebalance_timeout_ms=request.session_timeout_ms
        if rebalance_timeout_ms < 0
        else rebalance_timeout_ms,
        classic=ClassicMemberFields(request.session_timeout_ms, protocols),
    )


def _by_id(named: NamedPartitions, view: TopicsView) -> Partitions:
    topics = known_topics(view, {name for name, _ in named})
    return frozenset((topics[name].topic_id, i) for name, i in named if name in topics)


# --- JoinGroup of a static member that replaces the last consumer ---


class _Downgrade(NamedTuple):
    """A downgrade in which a new classic member replaces the last consumer, under the same instance id."""

    shard: GroupShard
    group: ConsumerGroup
    replaced: str
    member_id: str
    members: dict[str, ClassicGroupMember]

    def run(self, member: MemberMetadata, now_ms: int) -> Result[JoinGroupResponse]:
        """Return the generation to the new member if the group is settled; otherwise all members join again."""
        shard, group, member_id = self.shard, self.group, self.member_id
        generation = classic_generation(
            group, self.members, shard.topics, now_ms, replaced=(member_id, self.replaced)
        )
        is_settled = self._is_settled(member)
        former = list(group.members)
        parked: Deferred[JoinGroupResponse] = Deferred()
        answer = JoinGroupResponse(
            generation_id=generation.number,
            protocol_type=generation.protocol_type,
            protocol_name=generation.protocol_name,
            member_id=member_id,
        )

        def failed(error: ErrorCode) -> JoinGroupResponse:
            return JoinGroupResponse(error_code=error, member_id=member_id)

        def after(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                shard.runtime.answer(parked, failed(error), failed)
                return
            begin_classic(shard, group, former, self.members, now_ms)
            if not is_settled:
                shard.park_join(shard.classic_groups[group.group_id].members[member_id], parked)
                schedule_rejoin(shard, group.group_id, now_ms)

        records = [*group.tombstones(), GenerationRecord(group.group_id, generation)]
        return Result(answer if is_settled else parked, records, after)

    def _is_settled(self, member: MemberMetadata) -> bool:
        group = self.group
        return (
            group.assignment_epoch == group.epoch
            and group.checked == self.shard.topics.changes
            and wish_of(member) == wish_of(group.members[self.replaced])
            # The generation has no leader that could assign partitions that the replaced member did not own yet.
            and group.holding(self.replaced).assigned == group.target(self.replaced)
            and all(group.is_reconciled(other) for other in group.members if other != self.replaced)
        )


# --- SyncGroup, Heartbeat, LeaveGroup ---


def sync(shard: GroupShard, request: SyncGroupRequest, now_ms: int) -> Result[SyncGroupResponse]:
    """Handle a SyncGroup request: return the member's assignment.

    Raises:
        ApiError: The generation is not the member's epoch, or the member has to join again.
    """
    group = shard.consumer_groups[request.group_id]
    member_id, instance_id = request.member_id, request.group_instance_id
    classic = _classic_member(group, member_id, instance_id)
    current = group.holding(member_id)
    if current.epoch != request.generation_id:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    protocol = classic.protocols[0]
    if request.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or (
        request.protocol_name not in {None, protocol.name}
    ):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
        shard.await_join(group, member_id, now_ms)
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
    shard.timers.cancel(shard.consumer_timer(CONSUMER_SYNC, group, member_id))
    shard.begin_consumer_session(group, member_id, now_ms)
    return Result(
        SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=classic_assignment(current.assigned, protocol.metadata, shard.topics),
        )
    )


def heartbeat(
    shard: GroupShard, request: HeartbeatRequest, now_ms: int
) -> Result[HeartbeatResponse]:
    """Extend a member's session, and return whether the member has to join again.

    Raises:
        ApiError: The generation is not the member's epoch.
    """
    group = shard.consumer_groups[request.group_id]
    member_id = request.member_id
    _classic_member(group, member_id, request.group_instance_id)
    current = group.holding(member_id)
    if current.epoch != request.generation_id:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    shard.begin_consumer_session(group, member_id, now_ms)
    stop = shard.stops.must_stop(group.group_id, member_id)
    records = _changed_topics(shard, group)
    if (
        not records
        and current.epoch >= group.epoch
        and current.state is not MemberState.UNREVOKED
        and not (current.state is MemberState.UNRELEASED and _is_released(group, member_id))
    ):
        return Result(HeartbeatResponse(headrace_stop=stop))
    shard.await_join(group, member_id, now_ms)
    rebalancing = ErrorCode.REBALANCE_IN_PROGRESS
    again = HeartbeatResponse(error_code=rebalancing, headrace_stop=stop)
    changes = shard.topics.changes

    def after(error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            group.checked = changes

    return Result(again, records, after)


def _changed_topics(shard: GroupShard, group: ConsumerGroup) -> list[GroupRecord]:
    """Return the record that raises the group epoch because the subscribed topics have changed; else nothing."""
    if group.checked == shard.topics.changes:
        return []
    hashed = metadata_hash(known_topics(shard.topics, topics_of(group.wishes, group.regexes)))
    if hashed != group.metadata_hash:
        return [GroupEpoch(group.group_id, group.epoch + 1, hashed)]
    group.checked = shard.topics.changes
    return []


def _is_released(group: ConsumerGroup, member_id: str) -> bool:
    """Return whether no other member owns a partition of this member's target any more."""
    missing = group.target(member_id) - group.holding(member_id).assigned
    return not any(group.owners.get(partition, member_id) != member_id for partition in missing)


def leave(
    shard: GroupShard, group_id: str, leaving: list[MemberIdentity], now_ms: int
) -> Result[LeaveGroupResponse]:
    """Remove members of both protocols, each with its own error code."""
    group = shard.consumer_groups[group_id]
    removed: dict[str, None] = {}
    responses = []
    for identity in leaving:
        instance_id, code = identity.group_instance_id, ErrorCode.NONE
        # An administrator may send the instance id of a static member without its member id.
        member_id = identity.member_id or group.instances.get(instance_id or "", "")
        try:
            if member_id in removed:
                raise unknown_member(group, member_id)
            _check_member(group, member_id, instance_id)
            removed[member_id] = None
            shard.stops.ends(group_id, member_id, StopState.STOPPED)
        except ApiError as error:
            code = error.code
        responses.append(
            MemberResponse(
                member_id=identity.member_id, group_instance_id=instance_id, error_code=code
            )
        )
    response = LeaveGroupResponse(members=responses)
    if not removed:
        return Result(response)
    return remove(shard, group, list(removed), now_ms).with_response(response)


def _check_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> MemberMetadata:
    """Return a member.

    Raises:
        ApiError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
    """
    if instance_id is not None:
        check_instance(group, instance_id, member_id)
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(group, member_id)
    return member


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> ClassicMemberFields:
    """Return what a member is as a classic one.

    Raises:
        ApiError: UNKNOWN_MEMBER_ID, also for a member that is none; FENCED_INSTANCE_ID.
    """
    classic = _check_member(group, member_id, instance_id).classic
    if classic is None:
        raise unknown_member(group, member_id)
    return classic
