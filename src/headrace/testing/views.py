"""Views of a broker for tests: the state of a group, its committed offsets, its lag.

These look into the broker directly: they are no requests, which faults could meet, and they change nothing. The lock
has to be held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.broker.broker import Broker as CoreBroker
from headrace.clients.flows.membership import CONSUMER_PROTOCOL_TYPE, decode_assignment
from headrace.errors import ProtocolError
from headrace.protocol.messages import consumer_group_describe
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from headrace.types import TopicPartition

CONSUMER_MEMBER: Final = 1
"""The type of a member that speaks KIP-848's protocol, as ConsumerGroupDescribe tells it."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group at one moment."""

    state: str
    """Kafka's name; "Dead" when there is no such group."""
    members: int
    committed: dict[TopicPartition, int]
    lag: dict[TopicPartition, int]
    """Records not yet committed, of each partition that is assigned or has a commit."""

    def __str__(self) -> str:
        lag = ", ".join(f"{where}: {records}" for where, records in sorted(self.lag.items()))
        count = f"{self.members} member{'' if self.members == 1 else 's'}"
        return f"{self.state}, {count}, lag {{{lag}}}"


class Member(NamedTuple):
    """A member of a group, under whichever protocol."""

    member_id: str
    group_instance_id: str | None
    assigned: frozenset[TopicPartition]
    by_heartbeats: bool = False
    """Whether it speaks KIP-848's protocol."""


class Group(NamedTuple):
    """A group and its members."""

    state: str
    members: list[Member]


def describe(core: CoreBroker, group: str, now_ms: int) -> Group | None:
    """Return a group and its members; None while a change of it is not durable yet."""
    described = core.services.groups.describe_groups([group], now_ms)
    if not isinstance(described, list):
        return None
    members = [
        Member(each.member_id, each.group_instance_id, _assigned(described[0], each))
        for each in described[0].members
    ]
    consumers = core.services.groups.describe_consumer_groups([group], now_ms)
    if not isinstance(consumers, list):
        return None
    if consumers[0].error_code:
        return Group(described[0].group_state, members)
    return Group(consumers[0].group_state, [_consumer(each) for each in consumers[0].members])


def _consumer(member: consumer_group_describe.Member) -> Member:
    assigned = frozenset(
        TopicPartition(topic.topic_name, number)
        for topic in member.assignment.topic_partitions
        for number in topic.partitions
    )
    by_heartbeats = member.member_type == CONSUMER_MEMBER
    return Member(member.member_id, member.instance_id, assigned, by_heartbeats)


def committed_offsets(
    core: CoreBroker, group: str, now_ms: int
) -> dict[TopicPartition, int] | None:
    """Return what a group has committed; None while a commit is not durable yet."""
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
    """Return a group at this moment; None while a change of it is not durable yet.

    Args:
        core: The broker.
        group: The group.
        topic: The topic whose lag is asked for; None is all that members are assigned, and that have a commit.
        now_ms: The time.
    """
    described = describe(core, group, now_ms)
    committed = committed_offsets(core, group, now_ms)
    if described is None or committed is None:
        return None
    places = set(committed).union(*(member.assigned for member in described.members))
    if topic is not None:
        found = core.services.topics.get(topic)
        count = 0 if found is None else len(found.partitions)
        places = {TopicPartition(topic, index) for index in range(count)}
    return GroupView(
        described.state,
        len(described.members),
        committed,
        {where: _lag(core, where, committed.get(where)) for where in places},
    )


def record_count(core: CoreBroker, topic: str) -> int:
    """Return how many records a topic has that can be read, all partitions together."""
    found = core.services.topics.get(topic)
    partitions = [] if found is None else found.partitions
    return sum(each.high_watermark - each.log_start_offset for each in partitions if each)


def _assigned(described: DescribedGroup, member: DescribedGroupMember) -> frozenset[TopicPartition]:
    if described.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return frozenset()
    try:
        return frozenset(decode_assignment(member.member_assignment))
    except ProtocolError:  # a format of the client's own
        return frozenset()


def _lag(core: CoreBroker, where: TopicPartition, committed: int | None) -> int:
    topic = core.services.topics.get(where.topic)
    if topic is None or not where.partition < len(topic.partitions):
        return 0
    partition = topic.partitions[where.partition]
    if partition is None:
        return 0
    begin = partition.log_start_offset
    return partition.high_watermark - max(begin, begin if committed is None else committed)
