"""Checks of commits and fetches of offsets: a given member id and epoch must be current."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.coordinator.classic.membership import validate_member
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.shard import GroupShard
from headrace.errors import ErrorCode

MEMBER_EPOCHS_VERSION = 9
"""The first OffsetCommit version for members of consumer groups, and with GROUP_ID_NOT_FOUND."""


class CommitSender(NamedTuple):
    """The sender of a commit, from the fields of the request."""

    group_id: str
    member_id: str
    instance_id: str | None
    epoch: int
    """The generation, or the member epoch."""
    version: int | None
    """The version of the OffsetCommit request; None in a transaction."""


def check_classic_commit(shard: GroupShard, committer: CommitSender) -> ErrorCode:
    """Return NONE if a classic group, or a group that does not exist yet, accepts the commit; otherwise the error."""
    group = shard.classic_groups.get(committer.group_id)
    transactional = committer.version is None
    if (
        not transactional
        and committer.epoch < 0
        and (group is None or group.state is GroupState.EMPTY)
    ):
        # The group has no members. Consumers that assign partitions to themselves, and tools, may commit.
        return ErrorCode.NONE
    if group is None:
        named = (committer.version or 0) >= MEMBER_EPOCHS_VERSION
        return ErrorCode.GROUP_ID_NOT_FOUND if named else ErrorCode.ILLEGAL_GENERATION
    # If the group has members, a commit without a member id is UNKNOWN_MEMBER_ID too.
    error = validate_member(group, committer.member_id, committer.instance_id)
    if error is ErrorCode.NONE and committer.epoch != group.generation.number:
        error = ErrorCode.ILLEGAL_GENERATION
    if (
        error is ErrorCode.NONE
        and not transactional
        and group.state is GroupState.COMPLETING_REBALANCE
    ):
        error = ErrorCode.REBALANCE_IN_PROGRESS
    return error


def check_consumer_commit(shard: GroupShard, committer: CommitSender) -> ErrorCode:
    """Return NONE if a consumer group accepts the commit, otherwise the error."""
    group = shard.consumer_groups[committer.group_id]
    if committer.epoch < 0 and not group.members:
        return ErrorCode.NONE
    error = _check_epoch(shard, committer.group_id, committer.member_id, committer.epoch)
    if committer.version is None:
        # Producers do not know STALE_MEMBER_EPOCH.
        stale = error is ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.ILLEGAL_GENERATION if stale else error
    is_consumer = (
        committer.member_id in group.members and committer.member_id not in group.classic_members
    )
    if is_consumer and committer.version < MEMBER_EPOCHS_VERSION:
        return ErrorCode.UNSUPPORTED_VERSION
    return error


def check_classic_fetch(
    _shard: GroupShard, _group_id: str, _member_id: str | None, _epoch: int
) -> ErrorCode:
    """Return NONE: every client may fetch the offsets of a classic group."""
    return ErrorCode.NONE


def check_consumer_fetch(
    shard: GroupShard, group_id: str, member_id: str | None, epoch: int
) -> ErrorCode:
    """Return NONE if a client may fetch the offsets of a consumer group, otherwise the error.

    A request without a member id and epoch is allowed. A member has to send its current epoch.
    """
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    return _check_epoch(shard, group_id, member_id or "", epoch)


def _check_epoch(shard: GroupShard, group_id: str, member_id: str, epoch: int) -> ErrorCode:
    group = shard.consumer_groups[group_id]
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == group.holding(member_id).epoch:
        return ErrorCode.NONE
    is_classic = member_id in group.classic_members
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
