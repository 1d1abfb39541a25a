"""OffsetCommit, OffsetFetch, and the deletion of offsets that have expired or whose topic was deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from headrace.core.coordinator.any_group.fencing import CommitSender
from headrace.core.coordinator.any_group.kinds import kind_of
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import (
    CommittedOffset,
    GenerationRecord,
    GroupRecord,
    OffsetCommit,
)
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.subscription import subscribed_topics
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

NO_COMMITTED_OFFSET = -1
NO_LEADER_EPOCH = -1
_UNSTABLE = partial(
    OffsetFetchResponsePartitions,
    committed_offset=NO_COMMITTED_OFFSET,
    committed_leader_epoch=NO_LEADER_EPOCH,
    metadata="",
    error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
)
"""The response for a partition with a pending offset: a transaction that has not ended may change the offset."""


# --- commit ---


def commit_offsets(
    shard: GroupShard, request: OffsetCommitRequest, now_ms: int, version: int
) -> Result[OffsetCommitResponse]:
    """Write the offsets of a commit in one batch. Partitions with an invalid entry get an error and are left out.

    Raises:
        ApiError: The group does not accept commits from this sender now. Nothing is written.
    """
    group = shard.classic_groups.get(request.group_id)
    sender = CommitSender(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        version,
    )
    error = kind_of(shard, request.group_id).check_commit(shard, sender)
    if error is not ErrorCode.NONE:
        raise ApiError(error)
    if group is not None and (member := group.members.get(request.member_id)) is not None:
        shard.reset_session(group, member, now_ms)
    records = []
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            metadata = partition.committed_metadata or ""
            too_large = len(metadata) > shard.config.offset_metadata_max_bytes
            code = ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE
            partitions.append(
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
            )
            if not too_large:
                committed = _committed(partition, metadata, now_ms)
                records.append(
                    OffsetCommit(request.group_id, topic.name, partition.partition_index, committed)
                )
        topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    require_space(shard, records)
    return Result(OffsetCommitResponse(topics=topics), records)


def require_space(shard: GroupShard, commits: Sequence[OffsetCommit]) -> None:
    """Refuse a commit if the memory of all committed offsets would exceed its limit.

    Raises:
        ApiError: INVALID_COMMIT_OFFSET_SIZE. Clients do not retry after this error.
    """
    if not shard.memory.has_space_for_offsets(shard.offsets.added_bytes(commits)):
        shard.journal.warning("committed_offsets_limited", held_bytes=shard.memory.offsets_bytes)
        raise ApiError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def commit_failed(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """Return the response with `error` for every partition of the request."""
    if error is ErrorCode.UNKNOWN_SERVER_ERROR:
        # The runtime returns this code for one append error: the batch exceeds the internal topic's maximum.
        error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _committed(
    partition: OffsetCommitRequestPartition, metadata: str, now_ms: int
) -> CommittedOffset:
    return CommittedOffset(
        partition.committed_offset, partition.committed_leader_epoch, metadata, now_ms
    )


# --- fetch ---


def fetch_offsets(
    shard: GroupShard, request: OffsetFetchRequestGroup, *, require_stable: bool = False
) -> Result[OffsetFetchResponseGroup]:
    """Return committed offsets, -1 without an error for a partition without one; null topics mean all topics.

    Raises:
        ApiError: The request has a member id or epoch that is not current in its consumer group.
    """
    kind = kind_of(shard, request.group_id)
    error = kind.check_fetch(shard, request.group_id, request.member_id, request.member_epoch)
    if error is not ErrorCode.NONE:
        raise ApiError(error)
    offsets = shard.offsets.of_group(request.group_id)
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        wanted = ((topic, sorted(partitions)) for topic, partitions in sorted(offsets.items()))
    else:
        wanted = ((topic.name, topic.partition_indexes) for topic in request.topics)
    topics = [
        OffsetFetchResponseTopics(
            name=topic,
            partitions=[
                _UNSTABLE(partition_index=partition)
                if require_stable and shard.offsets.is_pending(request.group_id, topic, partition)
                else _fetched(partition, offsets.get(topic, {}).get(partition))
                for partition in partitions
            ],
        )
        for topic, partitions in wanted
    ]
    return Result(OffsetFetchResponseGroup(group_id=request.group_id, topics=topics))


def _fetched(partition: int, committed: CommittedOffset | None) -> OffsetFetchResponsePartitions:
    if committed is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=NO_COMMITTED_OFFSET,
            committed_leader_epoch=NO_LEADER_EPOCH,
            metadata="",
        )
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


# --- expiry and deleted topics ---


def expired(shard: GroupShard, now_ms: int) -> Iterator[tuple[int, list[GroupRecord]]]:
    """Yield for each group the number of its offsets, and the tombstones of its expired offsets.

    The tombstones of a group that has nothing left delete the group too. Groups may be created and deleted between one
    step of the iterator and the next.

    The retention begins as in KIP-211. For a group that had members it begins when the group became empty, or with a
    later commit. It begins with the commit for a group that never had members, and for a topic to which a stable
    consumer group is no longer subscribed.
    """
    for empty in [group for group in shard.consumer_groups.values() if not group.members]:
        is_there = shard.consumer_groups.get(empty.group_id) is empty and not empty.members
        if is_there and not shard.offsets.has_any(empty.group_id):
            yield 0, list(empty.tombstones())
    for group in list(shard.classic_groups.values()):
        if shard.classic_groups.get(group.group_id) is not group:
            continue
        tombstones: list[GroupRecord] = []
        offsets = shard.offsets.of_group(group.group_id)
        kept = 0
        consumer_group = shard.consumer_groups.get(group.group_id)
        subscribed = _subscribed(group) if consumer_group is None else consumer_group.subscribed
        for topic, partitions in offsets.items():
            for partition, committed in partitions.items():
                if (
                    topic not in subscribed
                    and not shard.offsets.is_pending(group.group_id, topic, partition)
                    and _is_expired(shard, group, committed, now_ms)
                ):
                    tombstones.append(OffsetCommit(group.group_id, topic, partition, None))
                else:
                    kept += 1
        count = kept + len(tombstones)
        deserted = group.state is GroupState.EMPTY and not group.pending
        if shard.offsets.has_pending(group.group_id):
            kept += 1
        if not kept and deserted and group.is_stored:
            tombstones.append(GenerationRecord(group.group_id, None))
        yield count, tombstones


class _Everything:
    """A set that contains every topic."""

    def __contains__(self, topic: str) -> bool:
        return True


def _subscribed(group: ClassicGroup) -> frozenset[str] | _Everything:
    """Return the topics whose offsets do not expire, because members are subscribed to them."""
    if group.state is GroupState.EMPTY:
        return frozenset()
    if group.state is not GroupState.STABLE or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return _Everything()
    topics: frozenset[str] = frozenset()
    for member in group.generation.members:
        subscription = subscribed_topics(member.subscription)
        if subscription is None:
            return _Everything()
        topics |= subscription
    return topics


def _is_expired(
    shard: GroupShard, group: ClassicGroup, committed: CommittedOffset, now_ms: int
) -> bool:
    if committed.expire_timestamp_ms >= 0:
        return now_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms
    if group.is_stored and group.state is GroupState.EMPTY:
        since_ms = max(since_ms, group.generation.state_timestamp_ms)
    return now_ms - since_ms >= shard.config.offsets_retention_ms


def of_deleted_topic(
    shard: GroupShard, group_id: str, topic: str, until_ms: int | None
) -> list[GroupRecord]:
    """Return the tombstones of the offsets that a group has committed for a deleted topic.

    Without tombstones a later topic of the same name would inherit the offsets.

    Args:
        shard: The shard of the group.
        group_id: The group.
        topic: The topic.
        until_ms: Offsets that were committed after this time stay; None to delete all.
    """
    return [
        OffsetCommit(group_id, topic, partition, None)
        for partition, committed_ms in shard.offsets.partitions_of(group_id, topic).items()
        if until_ms is None or committed_ms <= until_ms
    ]
