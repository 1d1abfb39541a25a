"""Upgrade of a classic group to a consumer group, when a consumer joins it. Its members keep their partitions.

The upgrade and the turn of the new member are one batch: after a crash the group is a classic group as before, or a
consumer group. The generation becomes the group epoch, the assignment epoch and the epoch of every member, so that
heartbeats and commits of the classic members stay valid. The new member raises the group epoch. This makes the classic
members join again, and from then on the coordinator computes the assignment.

The new member may be a static member that replaces itself with an unchanged subscription, which alone would not raise
the group epoch. But the assignment of the classic members may be unfinished, or older than the topics. So the upgrade
stores the group epoch with the hash of no topics, and the first turn finds that the topics differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.core.coordinator.state.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicGroupMember,
)
from headrace.core.coordinator.state.consumer_group import ConsumerGroup
from headrace.core.coordinator.state.consumer_records import (
    ClassicMemberFields,
    ConsumerRecord,
    Current,
    CurrentMember,
    GroupEpoch,
    MemberMetadata,
    MemberRecord,
    Partition,
    Partitions,
    TargetEpoch,
    TargetMember,
)
from headrace.core.coordinator.state.records import GenerationRecord, GroupRecord
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.subscription import (
    ClassicSubscription,
    NamedPartitions,
    read_assignment,
    read_subscription,
)
from headrace.core.coordinator.state.topics import TopicsView, known_topics, metadata_hash
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupResponse


class Upgrade(NamedTuple):
    """The records of an upgrade, and the members that it affects."""

    records: Sequence[GroupRecord] = ()
    shard: GroupShard | None = None
    classic: ClassicGroup | None = None

    def after(self, error: ErrorCode, now_ms: int) -> None:
        """Drop the classic group when the records are replayed. Its parked members receive REBALANCE_IN_PROGRESS."""
        if error is not ErrorCode.NONE or self.shard is None or self.classic is None:
            return
        shard, classic = self.shard, self.classic
        group = shard.consumer_groups[classic.group_id]
        for member in classic.members.values():
            again = ErrorCode.REBALANCE_IN_PROGRESS
            shard.answer_join(
                member, JoinGroupResponse(error_code=again, member_id=member.member_id)
            )
            shard.answer_sync(member, SyncGroupResponse(error_code=again))
            if member.member_id in group.members:
                shard.begin_consumer_session(group, member.member_id, now_ms)
        if classic.members:
            shard.journal.info("group_upgraded", group=classic.group_id, epoch=group.epoch)
        shard.drop_classic(classic)


NO_UPGRADE: Final = Upgrade()


def upgrade(shard: GroupShard, classic: ClassicGroup) -> tuple[ConsumerGroup, Upgrade]:
    """Return the consumer group that a classic group becomes.

    Raises:
        ApiError: GROUP_ID_NOT_FOUND: the group has to stay a classic group.
    """
    _check(shard, classic)
    group_id, epoch = classic.group_id, classic.generation.number
    members = [_Known(member, _said(classic, member)) for member in classic.members.values()]
    held = _held(classic, members, shard.topics)
    group_records: list[ConsumerRecord] = [GroupEpoch(group_id, epoch, metadata_hash({}))]
    for member, said in members:
        member_id, partitions = member.member_id, held[member.member_id]
        group_records += (
            MemberRecord(group_id, member_id, _metadata(member, said)),
            TargetMember(group_id, member_id, partitions),
            CurrentMember(group_id, member_id, Current(epoch, epoch, assigned=partitions)),
        )
    group_records.append(TargetEpoch(group_id, epoch))
    group = ConsumerGroup(group_id)
    for record in group_records:
        group.replay(record)
    return group, Upgrade([*_tombstone(classic), *group_records], shard, classic)


def replace_empty(shard: GroupShard, classic: ClassicGroup) -> Upgrade:
    """Return the end of a classic group without members, and of the rebalance that may be pending there."""
    return Upgrade(_tombstone(classic), shard, classic)


def _tombstone(classic: ClassicGroup) -> list[GroupRecord]:
    return [GenerationRecord(classic.group_id, None)] if classic.is_stored else []


class _Known(NamedTuple):
    member: ClassicGroupMember
    said: ClassicSubscription


def _check(shard: GroupShard, classic: ClassicGroup) -> None:
    if not shard.config.may_upgrade:
        why = "the broker's group.consumer.migration.policy does not allow the upgrade of a group with members"
    elif classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        why = f"its members are not consumers, but of protocol type {classic.protocol_type[:100]!r}"
    elif len(classic.members) > shard.config.group_consumer_max_size:
        why = f"it has more than {shard.config.group_consumer_max_size} members"
    else:
        return
    raise _stays_classic(classic, why)


def _stays_classic(classic: ClassicGroup, why: str) -> ApiError:
    return ApiError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {classic.group_id} is not a consumer group: it has members of the classic protocol, and {why}.",
    )


def _said(classic: ClassicGroup, member: ClassicGroupMember) -> ClassicSubscription:
    said = read_subscription(member.metadata(classic.generation.protocol_name))
    if said is None and member.protocols:
        said = read_subscription(member.protocols[0].metadata)
    if said is None:
        raise _stays_classic(classic, f"the subscription of {member.member_id} cannot be read")
    return said


def _metadata(member: ClassicGroupMember, said: ClassicSubscription) -> MemberMetadata:
    return MemberMetadata(
        instance_id=member.instance_id,
        rack_id=said.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=said.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberFields(member.session_timeout_ms, member.protocols),
    )


def _held(
    classic: ClassicGroup, members: Sequence[_Known], view: TopicsView
) -> dict[str, Partitions]:
    """Return the partitions that each member may be reading. Other members get them only after a revocation.

    These are the partitions of its assignment in the generation, and those that it owned when it joined: a member with
    a cooperative assignor reads these until it receives the new assignment, which may be in flight.
    """
    assigned: dict[str, set[Partition]] = {}
    for member, _ in members:
        named = read_assignment(member.assignment)
        if named is None:
            raise _stays_classic(classic, f"the assignment of {member.member_id} cannot be read")
        assigned[member.member_id] = _by_id(named, view)
    held: dict[str, Partitions] = {}
    taken = set().union(*assigned.values())
    once: set[Partition] = set()
    # If two members report the same partition as owned, it belongs to the member that received it later.
    for member, said in sorted(members, key=lambda known: -known.said.generation):
        kept = _by_id(said.owned, view) - taken
        taken |= kept
        mine = (assigned[member.member_id] - once) | kept
        once |= mine
        held[member.member_id] = frozenset(mine)
    return held


def _by_id(named: NamedPartitions, view: TopicsView) -> set[Partition]:
    topics = known_topics(view, {name for name, _ in named})
    return {
        (topics[name].topic_id, index)
        for name, index in named
        if name in topics and 0 <= index < topics[name].partitions_count
    }
