"""Views of a broker for tests: the state of a group, its committed offsets, its lag.

These functions read the state of the broker directly, so faults do not apply to them, and they change nothing. The
caller holds the broker's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.broker.broker import Broker as CoreBroker
from headrace.clients.flows.classic_group import CONSUMER_PROTOCOL_TYPE, decode_assignment
from headrace.errors import ApiError, ProtocolError
from headrace.protocol.messages import consumer_group_describe
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from headrace.types import TopicPartition

CONSUMER_MEMBER: Final = 1
"""The member type of the protocol `consumer` (KIP-848) in a response to ConsumerGroupDescribe."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The state of a group at one moment."""

    state: str
    """Kafka's name of the state; "Dead" if the group does not exist."""
    members: int
    committed: dict[TopicPartition, int]
    lag: dict[TopicPartition, int]
    """The number of records after the committed offset, for each partition that is assigned or has a commit."""

    def __str__(self) -> str:
        lag = ", ".join(f"{where}: {records}" for where, records in sorted(self.lag.items()))
        count = f"{self.members} member{'' if self.members == 1 else 's'}"
        return f"{self.state}, {count}, lag {{{lag}}}"


class MemberView(NamedTuple):
    """A member of a group of either protocol."""

    member_id: str
    group_instance_id: str | None
    assigned: frozenset[TopicPartition]
    by_heartbeats: bool = False
    """Whether the member uses the protocol `consumer` (KIP-848)."""


class GroupMembers(NamedTuple):
    """The state of a group, and its members."""

    state: str
    members: list[MemberView]


def describe(core: CoreBroker, group: str, now_ms: int) -> GroupMembers | None:
    """Return the state and the members of a group; None while a change of the group is not durable yet."""
    described = core.services.groups.describe_groups([group], now_ms)
    if not isinstance(described, list):
        return None
    members = [
        MemberView(each.member_id, each.group_instance_id, _assigned(described[0], each))
        for each in described[0].members
    ]
    consumers = core.services.groups.describe_consumer_groups([group], now_ms)
    if not isinstance(consumers, list):
        return None
    if consumers[0].error_code:
        return GroupMembers(described[0].group_state, members)
    return GroupMembers(
        consumers[0].group_state, [_consumer(each) for each in consumers[0].members]
    )


def _consumer(member: consumer_group_describe.Member) -> MemberView:
    assigned = frozenset(
        TopicPartition(topic.topic_name, number)
        for topic in member.assignment.topic_partitions
        for number in topic.partitions
    )
    by_heartbeats = member.member_type == CONSUMER_MEMBER
    return MemberView(member.member_id, member.instance_id, assigned, by_heartbeats)


def committed_offsets(
    core: CoreBroker, group: str, now_ms: int
) -> dict[TopicPartition, int] | None:
    """Return the committed offsets of a group; None while a commit is not durable yet."""
    wanted = OffsetFetchRequestGroup(group_id=group, topics=None)
    fetched = core.services.groups.fetch_offsets([wanted], now_ms)
    if not isinstance(fetched, list):
        return None
    return {
        TopicPartition(topic.name, partition.partition_index): partition.committed_offset
        for topic in fetched[0].topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


def view_group(core: CoreBroker, group: str, topic: str | None, now_ms: int) -> GroupView | None:
    """Return the view of a group; None while a change of the group is not durable yet.

    Args:
        core: The broker.
        group: The group.
        topic: The topic for the lag. None is all partitions that are assigned to members or have a committed offset.
        now_ms: The time in milliseconds.
    """
    described = describe(core, group, now_ms)
    committed = committed_offsets(core, group, now_ms)
    if described is None or committed is None:
        return None
    partitions = set(committed).union(*(member.assigned for member in described.members))
    if topic is not None:
        found = core.services.topics.get(topic)
        count = 0 if found is None else found.partitions_count
        partitions = {TopicPartition(topic, index) for index in range(count)}
    return GroupView(
        described.state,
        len(described.members),
        committed,
        {where: _lag(core, where, committed.get(where)) for where in partitions},
    )


def record_count(core: CoreBroker, topic: str) -> int:
    """Return the number of readable records in all partitions of a topic."""
    found = core.services.topics.get(topic)
    partitions = () if found is None else core.services.partitions.of(found)
    return sum(each.high_watermark - each.log_start_offset for each in partitions if each)


def _assigned(described: DescribedGroup, member: DescribedGroupMember) -> frozenset[TopicPartition]:
    if described.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return frozenset()
    try:
        return frozenset(decode_assignment(member.member_assignment))
    except ProtocolError:  # the client uses a format of its own
        return frozenset()


def _lag(core: CoreBroker, where: TopicPartition, committed: int | None) -> int:
    try:
        partition = core.services.partitions.require(where.topic, where.partition)
    except ApiError:
        return 0
    begin = partition.log_start_offset
    return partition.high_watermark - max(begin, begin if committed is None else committed)
