"""Checks of the sender of a heartbeat: member ids, instance ids and member epochs."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.coordinator.consumer.removal import check_instance, unknown_member
from headrace.core.coordinator.consumer.requests import owned_partitions
from headrace.core.coordinator.state.consumer_group import (
    LEFT_STATIC_EPOCH,
    NEW_MEMBER,
    ConsumerGroup,
)
from headrace.core.coordinator.state.consumer_records import Current, MemberMetadata
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest


class SenderIdentity(NamedTuple):
    """The member that sent a request, before the request changes it."""

    member_id: str
    member: MemberMetadata
    current: Current
    is_new: bool = False
    replaces: str | None = None
    """The member whose instance id, target and current assignment the sender takes over; None if there is none."""


def identify(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    max_size: int,
) -> SenderIdentity:
    """Return the member that sent a heartbeat.

    Args:
        group: The group.
        request: The heartbeat.
        member_id: The member id of the request, or a new id.
        max_size: The largest number of members in a group.

    Raises:
        ApiError: The group has no such member, or the member is not in the epoch of the request.
    """
    if request.instance_id is not None:
        if request.member_epoch != 0:
            check_instance(group, request.instance_id, member_id)
        holder = group.instances.get(request.instance_id)
        if holder is not None and holder != member_id:
            _check_released(group, request.instance_id, holder, member_id)
            return _replacement(group, holder, member_id)
    if member_id in group.members:
        current = group.holding(member_id)
        _check_epoch(current, request)
        return SenderIdentity(member_id, group.members[member_id], current)
    if request.member_epoch != 0:
        raise unknown_member(group, member_id)
    return _newcomer(group, member_id, max_size)


def identify_classic(
    group: ConsumerGroup,
    request: JoinGroupRequest,
    member_id: str,
    max_size: int,
) -> SenderIdentity:
    """Return the member that sent a JoinGroup. A new static member replaces the old one at once.

    Args:
        group: The group.
        request: The JoinGroup.
        member_id: The member id of the request, or a new id.
        max_size: The largest number of members in a group.

    Raises:
        ApiError: Another member has the instance id of the request, or the group is full.
    """
    if request.group_instance_id is not None:
        if request.member_id:
            check_instance(group, request.group_instance_id, member_id)
        holder = group.instances.get(request.group_instance_id)
        if holder is not None and holder != member_id:
            return _replacement(group, holder, member_id)
    if member_id in group.members:
        return SenderIdentity(member_id, group.members[member_id], group.holding(member_id))
    return _newcomer(group, member_id, max_size)


def _newcomer(group: ConsumerGroup, member_id: str, max_size: int) -> SenderIdentity:
    if len(group.members) >= max_size:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )
    return SenderIdentity(member_id, MemberMetadata(), NEW_MEMBER, is_new=True)


def _check_released(group: ConsumerGroup, instance_id: str, holder: str, member_id: str) -> None:
    """Refuse a new member whose instance id a member still has. A classic member never releases its instance id."""
    if group.holding(holder).epoch != LEFT_STATIC_EPOCH and group.members[holder].classic is None:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
            f"instance id is owned by {holder} member.",
        )


def _replacement(group: ConsumerGroup, holder: str, member_id: str) -> SenderIdentity:
    # The member has restarted: it has no epoch yet, but keeps the current assignment.
    current = group.holding(holder)._replace(epoch=0, previous_epoch=0)
    return SenderIdentity(member_id, group.members[holder], current, replaces=holder)


def _check_epoch(current: Current, request: ConsumerGroupHeartbeatRequest) -> None:
    """Refuse an epoch other than 0, the member's epoch, or the previous epoch of a member that missed a response."""
    if request.member_epoch in {0, current.epoch}:
        return
    owned = owned_partitions(request)
    missed_response = (
        request.member_epoch == current.previous_epoch
        and owned is not None
        and owned <= current.assigned
    )
    if not missed_response:
        larger = "greater" if request.member_epoch > current.epoch else "smaller"
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {larger} member epoch ({request.member_epoch}) than the one known by "
            f"the group coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
        )
