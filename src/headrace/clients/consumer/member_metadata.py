"""What clients of a group tell each other through the coordinator, which looks into none of it.

Whoever may join the group may write there what he likes: a subscription that cannot be read, or names a hundred
thousand topics, or claims each partition many times; as leader, an assignment of topics that nobody asked for. One such
member must not stop the group, nor take the memory of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace.clients.assignors.base import ExistingPartitions, MemberSubscription
from headrace.clients.flows import membership
from headrace.errors import ProtocolError
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.types import TopicPartition

MAX_GROUP_TOPICS: Final = 100_000
"""Most topics that the members of a group may be subscribed to together."""
MAX_ASSIGNED: Final = 100_000
"""Most partitions of one member."""

Warn = Callable[[str], object]


def read_topics(joined: JoinGroupResponse, warn: Warn) -> dict[str, frozenset[str]]:
    """Return the topics of each member whose subscription can be read; those with the fewest topics come first.

    Args:
        joined: What the coordinator told the leader.
        warn: Told which members get no partitions, and why.
    """
    found: dict[str, frozenset[str]] = {}
    names: dict[str, str] = {}
    for member in joined.members:
        try:
            told = membership.read_subscription(member.metadata)
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
        joined: What the coordinator told the leader.
        topics: The topics of the members that are to get partitions; the others are subscribed to nothing.
        partition_counts: The number of partitions of each topic that exists. Other partitions are owned by nobody.
    """
    existing = ExistingPartitions(partition_counts)
    members = {}
    for member in joined.members:
        if member.member_id not in topics:
            members[member.member_id] = MemberSubscription(frozenset())
            continue
        told = membership.read_subscription(member.metadata)
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
    """Return the partitions that a member takes of those that the leader of its group gave it.

    Args:
        group: The name of the group.
        given: What the leader gave.
        topics: What the member had told the group that it is subscribed to: nothing else is taken.
        warn: Told when the leader gave something else.

    Raises:
        ProtocolError: They are too many.
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
