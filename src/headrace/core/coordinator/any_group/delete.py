"""DeleteGroups and OffsetDelete: the deletion of groups and offsets by an administrator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import GenerationRecord, GroupRecord, OffsetCommit
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.subscription import subscribed_topics
from headrace.errors import ApiError, ErrorCode, GroupIdNotFoundError
from headrace.protocol.messages.delete_groups import DeletableGroupResult
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def delete_group(shard: GroupShard, group_id: str) -> Result[DeletableGroupResult]:
    """Write the tombstones of a group without members and of all its offsets, in one batch.

    Member ids that were issued and not used yet are dropped with the group.

    Raises:
        ApiError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
    """
    consumer_group = shard.consumer_groups.get(group_id)
    if consumer_group is None:
        has_members = _group(shard, group_id).state is not GroupState.EMPTY
    else:
        has_members = bool(consumer_group.members)
    if has_members:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP)
    records: list[GroupRecord] = [
        OffsetCommit(group_id, topic, partition, None)
        for topic, partition in shard.offsets.keys_of_group(group_id)
    ]
    if consumer_group is None:
        records.append(GenerationRecord(group_id, None))
    else:
        records += consumer_group.tombstones()
    return Result(DeletableGroupResult(group_id=group_id), records)


def delete_offsets(shard: GroupShard, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
    """Write the tombstones of offsets, except for topics to which members are subscribed.

    Raises:
        ApiError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP, for the request as a whole.
    """
    is_subscribed = _subscriptions(shard, request.group_id)
    committed = shard.offsets.keys_of_group(request.group_id)
    tombstones: dict[OffsetCommit, None] = {}
    topics = []
    for topic in request.topics:
        subscribed = is_subscribed(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            if not subscribed and (topic.name, index) in committed:
                tombstones[OffsetCommit(request.group_id, topic.name, index, None)] = None
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return Result(OffsetDeleteResponse(topics=topics), list(tombstones))


def _subscriptions(shard: GroupShard, group_id: str) -> Callable[[str], bool]:
    """Return a function that returns whether members are subscribed to a topic.

    Raises:
        ApiError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
    """
    consumer_group = shard.consumer_groups.get(group_id)
    if consumer_group is not None:
        return consumer_group.subscribed.__contains__
    group = _group(shard, group_id)
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP)
    return partial(_is_subscribed, group)


def _group(shard: GroupShard, group_id: str) -> ClassicGroup:
    group = shard.classic_groups.get(group_id)
    if group is None:
        raise GroupIdNotFoundError(f"group {group_id[:300]!r} does not exist")
    return group


def _is_subscribed(group: ClassicGroup, topic: str) -> bool:
    """Return whether a member is subscribed to a topic, or may be: a subscription that cannot be read counts as one."""
    protocol_name = group.generation.protocol_name
    for member in group.members.values():
        subscription = subscribed_topics(member.metadata(protocol_name))
        if subscription is None or topic in subscription:
            return True
    return False
