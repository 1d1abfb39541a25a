"""The kinds of groups: a table that selects the functions for a request which groups of every kind may get.

A group is of one kind at a time. A further kind (share groups, KIP-932) needs one more entry here, records in
`state.records`, and a dictionary of groups in the shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.core.coordinator.any_group import fencing
from headrace.core.coordinator.classic import join, membership, sync
from headrace.core.coordinator.consumer import classic_members
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import Origin
from headrace.core.coordinator.state.shard import GroupShard
from headrace.errors import ErrorCode
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class Kind(NamedTuple):
    """The operations of one kind of group: requests of classic members, and checks of commits and fetches."""

    join: Callable[[GroupShard, Origin, JoinGroupRequest, int], Result[JoinGroupResponse]]
    sync: Callable[[GroupShard, SyncGroupRequest, int], Result[SyncGroupResponse]]
    heartbeat: Callable[[GroupShard, HeartbeatRequest, int], Result[HeartbeatResponse]]
    leave: Callable[[GroupShard, str, list[MemberIdentity], int], Result[LeaveGroupResponse]]
    check_commit: Callable[[GroupShard, fencing.CommitSender], ErrorCode]
    check_fetch: Callable[[GroupShard, str, str | None, int], ErrorCode]


CLASSIC: Final = Kind(
    join.join_group,
    sync.sync_group,
    membership.heartbeat,
    membership.leave_group,
    fencing.check_classic_commit,
    fencing.check_classic_fetch,
)
"""A member, the leader, computes the assignment. A group that no member has joined yet is of this kind too."""

CONSUMER: Final = Kind(
    classic_members.join,
    classic_members.sync,
    classic_members.heartbeat,
    classic_members.leave,
    fencing.check_consumer_commit,
    fencing.check_consumer_fetch,
)
"""The coordinator computes the assignment. ConsumerGroupHeartbeat is not in this table: other groups never get it."""


def kind_of(shard: GroupShard, group_id: str) -> Kind:
    """Return the kind of a group; CLASSIC if the group does not exist."""
    return CONSUMER if group_id in shard.consumer_groups else CLASSIC
