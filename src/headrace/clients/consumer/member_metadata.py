"""The metadata that members of a classic group exchange through the coordinator, which does not read it.

A member may send anything: a subscription that cannot be parsed, that names a hundred thousand topics, or that claims
each partition many times; a leader may assign topics without subscribers. Such a member must not stop the group,
nor exhaust the memory of other members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace.clients.assignors.base import ExistingPartitions, MemberSubscription
from headrace.clients.flows import classic_group
from headrace.errors import ProtocolError
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.types import TopicPartition

MAX_GROUP_TOPICS: Final = 100_000
"""The largest number of topics to which all members of a group together may be subscribed."""
MAX_ASSIGNED: Final = 100_000
"""The largest number of partitions of one member."""

Warn = Callable[[str], object]


def read_topics(joined: JoinGroupResponse, warn: Warn) -> dict[str, frozenset[str]]:
    """Return the topics of each member whose subscription can be parsed; members with the fewest topics come first.

    Args:
        joined: The response of the coordinator to the leader.
        warn: Logs which members get no partitions, and why.
    """
    found: dict[str, frozenset[str]] = {}
    names: dict[str, str] = {}
    for member in joined.members:
        try:
            told = classic_group.read_subscription(member.metadata)
        except ProtocolError as error:
            warn(
                f"member {member.member_id!r} gets no partitions: its subscription is not readable: {error}"
            )
            continue
        found[member.member_id] = frozenset(names.setdefault(name, name) for name in told.topics)
    kept: dict[str, frozenset[str]] = {}
    together: set[str] = set()
    for member_id in sorted(found, key=lambda each: len(found[each])):
        topics = found[member_id]
        if (
            len(together) + len(topics) > MAX_GROUP_TOPICS
            and len(together | topics) > MAX_GROUP_TOPICS
        ):
            warn(
                f"member {member_id!r} gets no partitions: with its {len(topics)} topics the group is subscribed to "
                f"more than {MAX_GROUP_TOPICS}"
            )
            continue
        together |= topics
        kept[member_id] = topics
    return kept


def read_members(
    joined: JoinGroupResponse,
    topics: Mapping[str, frozenset[str]],
    partition_counts: Mapping[str, int],
) -> dict[str, MemberSubscription]:
    """Return the subscriptions for an assignor.

    Args:
        joined: The response of the coordinator to the leader.
        topics: The topics of each member that may get partitions. Other members count as subscribed to nothing.
        partition_counts: The number of partitions of each topic that exists. Owned partitions beyond are ignored.
    """
    existing = ExistingPartitions(partition_counts)
    members = {}
    for member in joined.members:
        if member.member_id not in topics:
            members[member.member_id] = MemberSubscription(frozenset())
            continue
        told = classic_group.read_subscription(member.metadata)
        owned = (existing.of(topic.topic, topic.partitions) for topic in told.owned_partitions)
        members[member.member_id] = MemberSubscription(
            topics[member.member_id],
            tuple(dict.fromkeys(name for part in owned for name in part)),
            told.generation_id,
            bytes(told.user_data or b""),
            member.group_instance_id,
            told.rack_id,
        )
    return members


def accepted(
    group: str, given: Iterable[TopicPartition], topics: frozenset[str], warn: Warn
) -> list[TopicPartition]:
    """Return the partitions of an assignment that a member accepts.

    Args:
        group: The name of the group.
        given: The partitions that the leader assigned.
        topics: The topics to which the member is subscribed. It accepts no others.
        warn: Logs that the leader assigned partitions of other topics.

    Raises:
        ProtocolError: There are more than `MAX_ASSIGNED` partitions.
    """
    partitions = list(dict.fromkeys(given))
    taken = [name for name in partitions if name.topic in topics and name.partition >= 0]
    if len(taken) < len(partitions):
        other = next(name for name in partitions if name.topic not in topics or name.partition < 0)
        warn(
            f"the leader of group {group!r} gave this member {other}, and {len(partitions) - len(taken) - 1} others, "
            "to which it is not subscribed; they are not read"
        )
    if len(taken) > MAX_ASSIGNED:
        raise ProtocolError(
            f"the leader of group {group!r} gave this member {len(taken)} partitions; {MAX_ASSIGNED} are the most"
        )
    return taken
