"""Requests of administrators about groups: list and describe groups, remove members."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.clients.flows.all_coordinators import ask_all_coordinators
from headrace.clients.flows.classic_group import CONSUMER_PROTOCOL_TYPE, decode_assignment
from headrace.clients.flows.coordinator import (
    ask_coordinator,
    find_coordinator,
    raise_for,
)
from headrace.clients.flows.effects import ClientState, Flow
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the list of its coordinator."""

    group_id: str
    protocol_type: str
    state: str
    """Kafka's name of the state; "" if the broker does not return it (Kafka before 2.6)."""
    coordinator: int
    """The node id of the coordinator."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group."""

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its state and its members."""

    group_id: str
    state: str
    """Kafka's name of the state; "Dead" for a group that does not exist."""
    protocol_type: str
    protocol: str
    """The name of the assignor that the group uses."""
    coordinator: int
    members: tuple[MemberDescription, ...]


def list_groups(state: ClientState) -> Flow[list[GroupListing]]:
    """Return the groups of all brokers, sorted by name."""
    outcomes = yield from ask_all_coordinators(
        state, ListGroupsRequest(), ListGroupsResponse, lambda response: response.error_code
    )
    listings: dict[str, GroupListing] = {}
    for node, outcome in sorted(outcomes.items()):
        raise_for(outcome.error_code, f"broker {node} cannot list its groups")
        for group in outcome.groups:
            listings[group.group_id] = GroupListing(
                group.group_id, group.protocol_type, group.group_state, node
            )
    return [listings[name] for name in sorted(listings)]


def describe_groups(state: ClientState, groups: Iterable[str]) -> Flow[dict[str, GroupDescription]]:
    """Describe groups. A group that does not exist has the state "Dead" and no members."""
    descriptions = {}
    for group in groups:
        response = yield from ask_coordinator(
            state,
            group,
            DescribeGroupsRequest(groups=[group]),
            DescribeGroupsResponse,
            lambda response: response.groups[0].error_code if response.groups else 0,
        )
        if not response.groups:
            raise ProtocolError(f"the coordinator's response does not contain group {group!r}")
        coordinator = yield from find_coordinator(state, group)
        described = _description(response.groups[0], coordinator)
        if not described.members:
            # DescribeGroups also returns a group of the protocol `consumer` (KIP-848) without members.
            described = (
                yield from _describe_consumer_group(state, group, coordinator)
            ) or described
        descriptions[group] = described
    return descriptions


def _describe_consumer_group(
    state: ClientState, group: str, coordinator: int
) -> Flow[GroupDescription | None]:
    """Describe a group of the protocol `consumer`; None if there is no such group, or no support for the protocol."""
    try:
        response = yield from ask_coordinator(
            state,
            group,
            ConsumerGroupDescribeRequest(group_ids=[group]),
            ConsumerGroupDescribeResponse,
            lambda response: response.groups[0].error_code if response.groups else 0,
        )
    except ApiError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        return None
    [found] = response.groups
    if found.error_code in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}:
        return None
    raise_for(found.error_code, f"group {group!r}")
    members = tuple(
        MemberDescription(
            member.member_id,
            member.client_id,
            member.client_host,
            member.instance_id,
            tuple(
                TopicPartition(topic.topic_name, number)
                for topic in member.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for member in found.members
    )
    return GroupDescription(
        group, found.group_state, CONSUMER_PROTOCOL_TYPE, found.assignor_name, coordinator, members
    )


def _description(group: DescribedGroup, coordinator: int) -> GroupDescription:
    if group.error_code and group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise ApiError.for_code(group.error_code, f"group {group.group_id!r}")
    return GroupDescription(
        group.group_id,
        group.group_state or "Dead",
        group.protocol_type,
        group.protocol_data,
        coordinator,
        tuple(_member(member, group.protocol_type) for member in group.members),
    )


def _member(member: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    assignment: tuple[TopicPartition, ...] = ()
    if protocol_type == CONSUMER_PROTOCOL_TYPE and member.member_assignment:
        # A client may send any bytes here. The rest of the group is described nevertheless.
        with contextlib.suppress(ProtocolError):
            assignment = tuple(decode_assignment(member.member_assignment))
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        assignment,
    )


def remove_member(
    state: ClientState, group: str, member_id: str, group_instance_id: str | None
) -> Flow[None]:
    """Remove a member from its group, by its member id or its instance id.

    Raises:
        ApiError: UNKNOWN_MEMBER_ID.
    """
    identity = MemberIdentity(
        member_id=member_id,
        group_instance_id=group_instance_id,
        reason="removed by an administrator",
    )
    response = yield from ask_coordinator(
        state,
        group,
        LeaveGroupRequest(group_id=group, member_id=member_id, members=[identity]),
        LeaveGroupResponse,
        lambda response: response.error_code,
    )
    name = group_instance_id or member_id
    code = next((member.error_code for member in response.members if member.error_code), 0)
    raise_for(response.error_code or code, f"member {name!r} of group {group!r}")
