"""Descriptions of groups for administrators: DescribeGroups and ListGroups."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.coordinator.consumer.describe import CONSUMER_TYPE
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicGroupMember,
)
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.shard import GroupShard
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace.protocol.messages.list_groups import ListedGroup

CLASSIC_TYPE = "classic"


def describe_group(shard: GroupShard, group_id: str) -> Result[DescribedGroup]:
    """Describe one classic group. A group that does not exist, or is not a classic group, has the state "Dead"."""
    group = shard.classic_groups.get(group_id)
    if group is None or group_id in shard.consumer_groups:
        return Result(DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value))
    stable = group.state is GroupState.STABLE
    return Result(
        DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type,
            protocol_data=(group.generation.protocol_name or "") if stable else "",
            members=[_described(group, member) for member in group.members.values()],
        )
    )


def _described(group: ClassicGroup, member: ClassicGroupMember) -> DescribedGroupMember:
    # In any other state no protocol is elected whose metadata could be returned.
    stable = group.state is GroupState.STABLE
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.generation.protocol_name) if stable else b"",
        member_assignment=member.assignment,
    )


def list_groups(
    shard: GroupShard, states: frozenset[str], types: frozenset[str]
) -> Result[Sequence[ListedGroup]]:
    """List the groups of a shard.

    Args:
        shard: The shard of the groups.
        states: The states to list, in lower case; empty for all.
        types: The group types to list, in lower case; empty for all.
    """
    classic = [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state.value,
            group_type=CLASSIC_TYPE,
        )
        for group in shard.classic_groups.values()
        if group.group_id not in shard.consumer_groups
    ]
    consumer = [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            group_state=group.state.value,
            group_type=CONSUMER_TYPE,
        )
        for group in shard.consumer_groups.values()
    ]
    return Result(
        [
            group
            for group in classic + consumer
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]
    )
