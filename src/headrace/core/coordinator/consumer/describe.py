"""ConsumerGroupDescribe: the description of a consumer group."""

from __future__ import annotations

from typing import Final

from headrace.core.coordinator.consumer.target import choose_assignor
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.consumer_group import ConsumerGroup
from headrace.core.coordinator.state.consumer_records import MemberMetadata, Partitions
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.topics import TopicsView
from headrace.errors import ErrorCode
from headrace.protocol.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CONSUMER_TYPE: Final = "consumer"
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


def describe_consumer_group(shard: GroupShard, group_id: str) -> Result[DescribedGroup]:
    """Describe one consumer group; GROUP_ID_NOT_FOUND for any other group."""
    group = shard.consumer_groups.get(group_id)
    if group is None:
        what = "is not a consumer group" if group_id in shard.classic_groups else "not found"
        return Result(
            DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} {what}.",
                group_id=group_id,
            )
        )
    return Result(
        DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=choose_assignor(group.members.values(), shard.assignors).name,
            members=[
                _member(group, member_id, member, shard.topics)
                for member_id, member in group.members.items()
            ],
        )
    )


def _member(
    group: ConsumerGroup, member_id: str, member: MemberMetadata, view: TopicsView
) -> Member:
    current = group.holding(member_id)
    return Member(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex or "",
        assignment=_named(current.assigned, view),
        target_assignment=_named(group.target(member_id), view),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _named(partitions: Partitions, view: TopicsView) -> Assignment:
    """Return partitions with the names of their topics, without those of deleted topics."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=indexes)
            for topic_id, indexes in topics.items()
            if (name := view.name_of(topic_id)) is not None
        ]
    )
