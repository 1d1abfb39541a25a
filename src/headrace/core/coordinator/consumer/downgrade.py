"""Downgrade of a consumer group to a classic group, when the last member of KIP-848 leaves and classic ones remain.

The group epoch becomes the generation. The current assignment of each member becomes its assignment in the generation,
so that no other member gets these partitions if a consumer joins now. The assignment is only temporary: some members
had not reached their target assignment, and the partitions of the member that left have no owner. Therefore all members
must join again, and their leader assigns. A crash before that loses the rebalance, but not its cause: the generation
has no leader. A coordinator that loads a stable generation of consumers without a leader begins the rebalance
(`needs_rebalance`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from headrace.core.coordinator.classic.rebalance import rejoin
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicGroupMember,
    select_protocol,
)
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.consumer_group import ConsumerGroup
from headrace.core.coordinator.state.consumer_records import MemberMetadata, Partitions
from headrace.core.coordinator.state.records import Generation, GenerationRecord
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.subscription import encode_assignment, version_of
from headrace.core.coordinator.state.topics import TopicsView
from headrace.errors import ErrorCode

REASON = "the group has become a classic group"


def classic_members(
    shard: GroupShard,
    group: ConsumerGroup,
    leaving: Collection[str],
    joining: tuple[str, MemberMetadata] | None = None,
) -> dict[str, ClassicGroupMember] | None:
    """Return the members of the classic group that a consumer group becomes, or None if it stays a consumer group.

    Args:
        shard: The shard of the group.
        group: The group.
        leaving: The members that leave.
        joining: The id and metadata of a classic member that replaces the leaving one; None without one.
    """
    gone = [member_id for member_id in leaving if member_id in group.members]
    classic_gone = sum(member_id in group.classic_members for member_id in gone)
    staying = len(group.members) - len(gone)
    count = staying + (joining is not None)
    if (
        len(gone) == classic_gone
        or staying != len(group.classic_members) - classic_gone
        or not 0 < count <= shard.config.group_max_size
        or not shard.config.may_downgrade
    ):
        return None
    members: dict[str, ClassicGroupMember] = {}
    for member_id, member in group.members.items():
        if member_id not in gone:
            members[member_id] = _classic_member(member_id, member)
        elif joining is not None:
            members[joining[0]] = _classic_member(*joining)
    return None if select_protocol(members.values()) is None else members


def downgrade(
    shard: GroupShard, group: ConsumerGroup, members: Mapping[str, ClassicGroupMember], now_ms: int
) -> Result[None]:
    """Turn the group into a classic group of these members, and make them join again."""
    generation = classic_generation(group, members, shard.topics, now_ms)
    former = list(group.members)

    def after(error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            begin_classic(shard, group, former, members, now_ms)
            schedule_rejoin(shard, group.group_id, now_ms)

    return Result(None, [*group.tombstones(), GenerationRecord(group.group_id, generation)], after)


def classic_generation(
    group: ConsumerGroup,
    members: Mapping[str, ClassicGroupMember],
    view: TopicsView,
    now_ms: int,
    *,
    replaced: tuple[str, str] = ("", ""),
) -> Generation:
    """Return the generation that a consumer group becomes; `replaced` has the new and the old id of a member."""
    protocol_name = select_protocol(members.values()) or ""
    return Generation(
        number=group.epoch,
        state=GroupState.STABLE,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol_name,
        leader=None,
        state_timestamp_ms=now_ms,
        members=tuple(
            member.stored(
                protocol_name,
                classic_assignment(
                    _held(group, replaced[1] if member_id == replaced[0] else member_id),
                    member.metadata(protocol_name),
                    view,
                ),
            )
            for member_id, member in members.items()
        ),
    )


def _held(group: ConsumerGroup, member_id: str) -> Partitions:
    current = group.holding(member_id)
    return current.assigned | current.revoking


def classic_assignment(partitions: Partitions, metadata: bytes, view: TopicsView) -> bytes:
    """Return the encoded assignment for a classic member, in the version of the member's metadata."""
    topics: dict[str, list[int]] = {}
    for topic_id, index in sorted(partitions):
        name = view.name_of(topic_id)
        if name is not None:
            topics.setdefault(name, []).append(index)
    return encode_assignment(version_of(metadata), topics)


def begin_classic(
    shard: GroupShard,
    consumers: ConsumerGroup,
    former: Iterable[str],
    members: Mapping[str, ClassicGroupMember],
    now_ms: int,
) -> None:
    """Begin the sessions of the classic group. Called when its generation is replayed."""
    for member_id in former:
        shard.cancel_consumer_timers(consumers, member_id)
        if member_id not in members:
            shard.member_gone(consumers.group_id, member_id)
    group = shard.classic_groups[consumers.group_id]
    for member in group.members.values():
        # The generation stores only one protocol of a member, but the next rebalance needs all of them.
        member.protocols = members[member.member_id].protocols
        member.protocols_complete = True
        shard.reset_session(group, member, now_ms)
    shard.journal.info("group_downgraded", group=group.group_id, generation=group.generation.number)


def schedule_rejoin(shard: GroupShard, group_id: str, now_ms: int) -> None:
    """Begin a rebalance in a separate operation, which runs after the current one."""
    shard.runtime.execute(
        partial(rejoin, shard, group_id, REASON, now_ms), lambda _error: None, now_ms
    )


def needs_rebalance(group: ClassicGroup) -> bool:
    """Return whether a generation that was read from the log comes from a downgrade, and needs a rebalance."""
    generation = group.generation
    return (
        generation.state is GroupState.STABLE
        and generation.leader is None
        and generation.protocol_type == CONSUMER_PROTOCOL_TYPE
    )


def _classic_member(member_id: str, member: MemberMetadata) -> ClassicGroupMember:
    assert member.classic is not None, "only classic members can be in a classic group"
    return ClassicGroupMember(
        member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=member.classic.protocols,
    )
