"""TxnOffsetCommit: offsets that are part of a transaction.

They are records of the producer's in the group's partition: pending until the marker of the transaction comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.coordinator.any_group.fencing import CommitSender
from headrace.core.coordinator.any_group.kinds import kind_of
from headrace.core.coordinator.any_group.offsets import require_space
from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.state.records import CommittedOffset, OffsetCommit, PendingOffset
from headrace.core.coordinator.state.shard import GroupShard
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


def commit_offsets(
    shard: GroupShard, request: TxnOffsetCommitRequest, now_ms: int
) -> Result[TxnOffsetCommitResponse]:
    """Write the offsets of a transaction in one batch. Partitions with too large metadata get an error.

    Raises:
        ApiError: The group does not accept commits from this sender now. Nothing is written.
    """
    error = _refusal(shard, request)
    if error is not ErrorCode.NONE:
        raise ApiError(error)
    limit = shard.config.offset_metadata_max_bytes
    records = [
        PendingOffset(
            request.producer_id,
            request.producer_epoch,
            OffsetCommit(
                request.group_id,
                topic.name,
                partition.partition_index,
                CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now_ms,
                ),
            ),
        )
        for topic in request.topics
        for partition in topic.partitions
        if _fits(partition, limit)
    ]
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=ErrorCode.NONE
                    if _fits(partition, limit)
                    else ErrorCode.OFFSET_METADATA_TOO_LARGE,
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    commits = [record.commit for record in records]
    require_space(shard, commits)
    _require_few(shard, request.producer_id, commits)
    return Result(TxnOffsetCommitResponse(topics=topics), records)


def _require_few(shard: GroupShard, producer_id: int, commits: Sequence[OffsetCommit]) -> None:
    """Refuse more pending offsets than one transaction may have, because its marker applies all of them in one step.

    Raises:
        ApiError: INVALID_COMMIT_OFFSET_SIZE, as in `require_space`.
    """
    added = shard.offsets.added_pending(producer_id, commits)
    if not shard.memory.has_space_for_pending(producer_id, added):
        shard.journal.warning("transactional_offsets_limited", producer_id=producer_id)
        raise ApiError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)


def commit_failed(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    """Return the response with `error` for every partition of the request."""
    if error is ErrorCode.UNKNOWN_SERVER_ERROR:
        # The runtime returns this code for one append error: the batch exceeds the internal topic's maximum.
        error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _fits(partition: TxnOffsetCommitRequestPartition, limit: int) -> bool:
    return len(partition.committed_metadata or "") <= limit


def _refusal(shard: GroupShard, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Return NONE if the group accepts the commit, otherwise the error.

    Requests before version 3 have no member id and no generation. They are accepted.
    """
    if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
        return ErrorCode.NONE
    sender = CommitSender(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        version=None,
    )
    return kind_of(shard, request.group_id).check_commit(shard, sender)
