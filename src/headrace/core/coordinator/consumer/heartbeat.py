"""ConsumerGroupHeartbeat: a member joins, leaves, or moves towards its target assignment."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.coordinator.consumer.identity import identify
from headrace.core.coordinator.consumer.removal import leave
from headrace.core.coordinator.consumer.requests import check_request, is_full, owned_partitions
from headrace.core.coordinator.consumer.turn import Turn, Visible, after_turn
from headrace.core.coordinator.consumer.upgrade import NO_UPGRADE, Upgrade, replace_empty, upgrade
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import Origin
from headrace.core.coordinator.state.consumer_group import NOTHING_ASSIGNED, ConsumerGroup
from headrace.core.coordinator.state.consumer_records import Current, MemberMetadata, Partitions
from headrace.core.coordinator.state.shard import GroupShard
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)


def heartbeat(
    shard: GroupShard,
    origin: Origin,
    request: ConsumerGroupHeartbeatRequest,
    visible: Visible,
    now_ms: int,
) -> Result[ConsumerGroupHeartbeatResponse]:
    """Handle one heartbeat. The response has the error code and message of a heartbeat that is refused."""
    try:
        check_request(request, origin.api_version, shard.assignors)
        if request.member_epoch < 0:
            return leave(shard, request, now_ms)
        return _stay(shard, origin, request, visible, now_ms)
    except ApiError as error:
        return Result(
            ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
        )


def _stay(
    shard: GroupShard,
    origin: Origin,
    request: ConsumerGroupHeartbeatRequest,
    visible: Visible,
    now_ms: int,
) -> Result[ConsumerGroupHeartbeatResponse]:
    group, upgraded = _find_group(shard, request)
    new_id = request.member_id or _uuid_text(shard.entropy.uuid())
    identity = identify(group, request, new_id, shard.config.group_consumer_max_size)
    member = _updated(identity.member, request, origin)
    turn = Turn(shard, group, identity, member, now_ms)
    owned = NOTHING_ASSIGNED if request.member_epoch == 0 else owned_partitions(request)
    current = turn.run(owned, visible)
    done = after_turn(turn, current)

    def after(error: ErrorCode) -> None:
        upgraded.after(error, now_ms)
        done(error)

    interval_ms = shard.times(group.group_id).heartbeat_interval_ms
    if turn.wait_ms is not None:
        # The member needs another turn by then.
        interval_ms = min(interval_ms, turn.wait_ms)
    response = _response(request, turn, current, interval_ms)
    response.headrace_stop = shard.stops.must_stop(group.group_id, turn.member_id)
    return Result(response, [*upgraded.records, *turn.records], after)


def _find_group(
    shard: GroupShard, request: ConsumerGroupHeartbeatRequest
) -> tuple[ConsumerGroup, Upgrade]:
    group_id = request.group_id
    group = shard.consumer_groups.get(group_id)
    if group is not None:
        return group, NO_UPGRADE
    if request.member_epoch != 0:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
    classic = shard.classic_groups.get(group_id)
    if classic is None:
        return ConsumerGroup(group_id), NO_UPGRADE
    if classic.members:
        return upgrade(shard, classic)
    return ConsumerGroup(group_id), replace_empty(shard, classic)


def _response(
    request: ConsumerGroupHeartbeatRequest, turn: Turn, current: Current, interval_ms: int
) -> ConsumerGroupHeartbeatResponse:
    has_assignment = (
        is_full(request)
        or request.member_epoch != turn.before.epoch
        or current.assigned != turn.before.assigned
    )
    return ConsumerGroupHeartbeatResponse(
        member_id=turn.member_id,
        member_epoch=current.epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=_assignment(current.assigned) if has_assignment else None,
    )


def _updated(
    member: MemberMetadata, request: ConsumerGroupHeartbeatRequest, origin: Origin
) -> MemberMetadata:
    """Return the metadata of a member with the changes of its request. A null field changes nothing.

    A member that joins sends its whole subscription. This replaces the subscription of the member that had its instance
    id before, or of the member itself before it was fenced.
    """
    joining = request.member_epoch == 0
    given: Mapping[str, object] = {
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "topics": None
        if request.subscribed_topic_names is None and not joining
        else tuple(sorted(set(request.subscribed_topic_names or ()))),
        "rebalance_timeout_ms": None
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        "assignor": request.server_assignor,
        "client_id": origin.client_id,
        "client_host": origin.client_host,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    if request.subscribed_topic_regex is not None or joining:
        changed["regex"] = request.subscribed_topic_regex or None
    updated: MemberMetadata = member._replace(classic=None, **changed)  # type: ignore[arg-type]  # names of fields
    return updated


def _assignment(partitions: Partitions) -> Assignment:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in topics.items()
        ]
    )


def _uuid_text(uuid: bytes) -> str:
    text = uuid.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
