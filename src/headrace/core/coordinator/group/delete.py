"""DeleteGroups and OffsetDelete: forgetting groups and offsets because somebody asked for it."""

from __future__ import annotations

from headrace.core.coordinator.group.classic import CONSUMER_PROTOCOL_TYPE, Group
from headrace.core.coordinator.group.records import GroupMetadata, GroupRecord, OffsetCommit
from headrace.core.coordinator.group.shard import GroupShard
from headrace.core.coordinator.group.states import GroupState
from headrace.core.coordinator.group.subscription import subscribed_topics
from headrace.core.coordinator.runtime import Result
from headrace.errors import ApiError, ErrorCode, GroupIdNotFoundError
from headrace.protocol.messages.delete_groups import DeletableGroupResult
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def delete_group(shard: GroupShard, group_id: str) -> Result[DeletableGroupResult]:
    """Write the tombstones of a group without members and of all its offsets, as one batch.

    Member ids that were handed out and not used yet are forgotten with it.

    Raises:
        ApiError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
    """
    group = _group(shard, group_id)
    if group.state is not GroupState.EMPTY:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP)
    records: list[GroupRecord] = [
        OffsetCommit(group_id, topic, partition, None)
        for topic, partition in shard.offsets.keys_of_group(group_id)
    ]
    records.append(GroupMetadata(group_id, None))
    return Result(DeletableGroupResult(group_id=group_id), records)


def delete_offsets(shard: GroupShard, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
    """Write the tombstones of offsets, but for topics that members are subscribed to.

    Raises:
        ApiError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP, for the request as a whole.
    """
    group = _group(shard, request.group_id)
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP)
    committed = shard.offsets.keys_of_group(request.group_id)
    tombstones: dict[OffsetCommit, None] = {}
    topics = []
    for topic in request.topics:
        subscribed = _is_subscribed(group, topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            if not subscribed and (topic.name, index) in committed:
                tombstones[OffsetCommit(request.group_id, topic.name, index, None)] = None
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return Result(OffsetDeleteResponse(topics=topics), list(tombstones))


def _group(shard: GroupShard, group_id: str) -> Group:
    group = shard.groups.get(group_id)
    if group is None:
        raise GroupIdNotFoundError(f"there is no group {group_id[:300]!r}")
    return group


def _is_subscribed(group: Group, topic: str) -> bool:
    """Whether a member is subscribed to a topic, or may be: while members join nobody knows for sure."""
    protocol_name = group.generation.protocol_name
    for member in group.members.values():
        subscription = subscribed_topics(member.metadata(protocol_name))
        if subscription is None or topic in subscription:
            return True
    return False
