"""Functions that build requests of group members and of transactional producers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.core.coordinator.state.subscription import encode_assignment, read_assignment
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from headrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression
from tests.fixtures.broker_harness import START_MS

Partition = tuple[str, int]
Owned = list[tuple[bytes, list[int]]]
"""Partition numbers by topic id, in the form of ConsumerGroupHeartbeat."""


def subscription(topics: Sequence[str]) -> bytes:
    """Return the metadata of a classic consumer that owns no partition."""
    message = ConsumerProtocolSubscription(topics=list(topics))
    payloads: Any = message.encode(1, b"\0\1")
    return b"".join(map(bytes, payloads))


def assignments(given: Mapping[str, Iterable[Partition]]) -> list[SyncGroupRequestAssignment]:
    """Return the assignments that a leader sends: the partitions of each member."""
    entries = []
    for member_id, partitions in given.items():
        by_topic: dict[str, list[int]] = {}
        for topic, index in partitions:
            by_topic.setdefault(topic, []).append(index)
        entries.append(
            SyncGroupRequestAssignment(
                member_id=member_id, assignment=encode_assignment(1, by_topic)
            )
        )
    return entries


def assigned(assignment: Any) -> set[Partition]:
    """Return the partitions of an assignment; none if it cannot be decoded."""
    return set(read_assignment(bytes(assignment)) or ())


def join(group: str, member_id: str, instance_id: str | None, **fields: Any) -> JoinGroupRequest:
    """Return a JoinGroup request. All `protocols` (names) have the same subscription, `topics`."""
    topics = fields.pop("topics")
    names = fields.pop("protocols", ["range"])
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequestProtocol(name=name, metadata=subscription(topics)) for name in names
        ],
        **fields,
    )


def sync(
    group: str,
    member_id: str,
    instance_id: str | None,
    generation: int,
    given: Sequence[SyncGroupRequestAssignment],
) -> SyncGroupRequest:
    """Return a SyncGroup request."""
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=None,
        protocol_name=None,
        assignments=list(given),
    )


def consumer_heartbeat(
    group: str,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    owned: Owned | None,
    **fields: Any,
) -> ConsumerGroupHeartbeatRequest:
    """Return a ConsumerGroupHeartbeat request."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance_id,
        topic_partitions=None
        if owned is None
        else [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in owned
        ],
        **fields,
    )


def commit(group: str, member_id: str, instance_id: str | None, epoch: int, **at: Any) -> Any:
    """Return an OffsetCommit request for one partition."""
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=at["topic"],
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=at["partition"], committed_offset=at["offset"]
                    )
                ],
            )
        ],
    )


def transactional_commit(group: str, producer: Any, member: tuple[Any, ...], **at: Any) -> Any:
    """Return a TxnOffsetCommit request for one partition. `member` has member id, instance id and epoch."""
    member_id, instance_id, epoch = member
    return TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=epoch,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=at["topic"],
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=at["partition"], committed_offset=at["offset"]
                    )
                ],
            )
        ],
    )


def add_partition(producer: Any, topic: str, partition: int) -> AddPartitionsToTxnRequest:
    """Return an AddPartitionsToTxn request of a client."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
    )


def add_group(producer: Any, group: str) -> AddOffsetsToTxnRequest:
    """Return a request to add a group's offsets to a transaction."""
    return AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )


def transactional_batch(producer_id: int, epoch: int, sequence: int) -> bytes:
    """Return a batch of one record."""
    builder = BatchBuilder(compression=Compression.NONE, transactional=True)
    assert builder.append(key=None, value=b"v", timestamp_ms=START_MS)
    return bytes(
        builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )


def end_offset(topic: str, partition: int, isolation_level: int) -> ListOffsetsRequest:
    """Return a ListOffsets request for the end of a partition at an isolation level."""
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    return ListOffsetsRequest(
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )
