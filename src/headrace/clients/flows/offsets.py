"""OffsetCommit and OffsetFetch: the committed offsets of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.clients.arguments import Int32, OffsetNumber
from headrace.clients.flows.coordinator import ask_coordinator, raise_for
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.routing import by_topic, partition_error
from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset, which is the offset of the next record, with a note of the program (`metadata`)."""

    offset: OffsetNumber
    metadata: str = ""
    leader_epoch: Int32 = -1


@dataclass(frozen=True, slots=True)
class CommitIdentity:
    """The identity for a commit: a member of the current generation; by default none, for a group without members."""

    generation_id: int = -1
    """The generation, or the member epoch in the protocol `consumer`; -1 without a member."""
    member_id: str = ""
    group_instance_id: str | None = None
    joined: int = 0
    """The number of joins of the member, in the protocol `consumer`. A commit from before a join is not retried after
    it."""


def commit_offsets(
    state: ClientState,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    committer: CommitIdentity | None = None,
    *,
    attempts: int | None = None,
) -> Flow[None]:
    """Commit offsets.

    Args:
        state: The client's state.
        group: The group's name.
        offsets: The offset after the last finished record, by partition.
        committer: The identity of the member; None for a group without members.
        attempts: The largest number of attempts; None retries until the deadline.

    Raises:
        ApiError: The first error among the partitions: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS ...
    """
    who = committer or CommitIdentity()
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=who.generation_id,
        member_id=who.member_id,
        group_instance_id=who.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        committed_metadata=committed.metadata,
                    )
                    for number, committed in partitions.items()
                ],
            )
            for name, partitions in by_topic(offsets).items()
        ],
    )
    response = yield from ask_coordinator(
        state, group, request, OffsetCommitResponse, _commit_error, attempts=attempts
    )
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise partition_error(
                    TopicPartition(topic.name, partition.partition_index), partition.error_code
                )


def _commit_error(response: OffsetCommitResponse) -> int:
    codes = (part.error_code for topic in response.topics for part in topic.partitions)
    return next((code for code in codes if code), 0)


def committed_offsets(
    state: ClientState,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    reader: CommitIdentity | None = None,
) -> Flow[dict[TopicPartition, OffsetAndMetadata]]:
    """Return the committed offsets of a group. Partitions without one are left out.

    Args:
        state: The client's state.
        group: The group's name.
        partitions: The partitions; None is all partitions with a committed offset.
        reader: The identity of the member. The coordinator refuses a member of the protocol `consumer` in an old epoch.
    """
    topics: list[OffsetFetchRequestTopic] | None = None
    group_topics: list[OffsetFetchRequestTopics] | None = None
    if partitions is not None:
        wanted = by_topic(dict.fromkeys(partitions))
        topics = [
            OffsetFetchRequestTopic(name=n, partition_indexes=list(p)) for n, p in wanted.items()
        ]
        group_topics = [
            OffsetFetchRequestTopics(name=n, partition_indexes=list(p)) for n, p in wanted.items()
        ]
    # Versions up to 7 send `group_id` and `topics`, versions from 8 on send `groups`. Both are set.
    request = OffsetFetchRequest(
        group_id=group,
        topics=topics,
        groups=[_of_group(group, group_topics, reader)],
        require_stable=True,
    )
    backoff = state.backoff()
    while True:
        response = yield from ask_coordinator(
            state, group, request, OffsetFetchResponse, _fetch_error
        )
        raise_for(_fetch_error(response), f"cannot read the offsets of group {group!r}")
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        unstable = None
        for topic_partition, found in _each_partition(response):
            if found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                unstable = partition_error(topic_partition, found.error_code)
            elif found.error_code:
                raise partition_error(topic_partition, found.error_code)
            elif found.committed_offset >= 0:
                offsets[topic_partition] = OffsetAndMetadata(
                    found.committed_offset, found.metadata or "", found.committed_leader_epoch
                )
        if unstable is None:
            return offsets
        yield backoff.after(unstable)


def _of_group(
    group: str, topics: list[OffsetFetchRequestTopics] | None, reader: CommitIdentity | None
) -> OffsetFetchRequestGroup:
    if reader is None or not reader.joined:
        return OffsetFetchRequestGroup(group_id=group, topics=topics)
    return OffsetFetchRequestGroup(
        group_id=group,
        member_id=reader.member_id,
        member_epoch=reader.generation_id,
        topics=topics,
    )


def _fetch_error(response: OffsetFetchResponse) -> int:
    return response.groups[0].error_code if response.groups else response.error_code


def _each_partition(
    response: OffsetFetchResponse,
) -> Iterable[tuple[TopicPartition, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]]:
    for group in response.groups:
        for group_topic in group.topics:
            for group_partition in group_topic.partitions:
                name = TopicPartition(group_topic.name, group_partition.partition_index)
                yield name, group_partition
    for topic in response.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition
