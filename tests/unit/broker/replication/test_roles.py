"""The roles of partitions: what waits is completed when a role ends, and what each role refuses."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.replication.partition import Partition
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.core.replica.role import NO_LEADER, Leadership, Role
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
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
from tests.fixtures.broker_harness import BrokerHarness, batch, fetch_request, produce_request

ME, OTHER = 1, 2


def partition_of(harness: BrokerHarness, topic: str = "t") -> Partition:
    return harness.broker.services.partitions.require(topic, 0)


def apply(
    harness: BrokerHarness, leader: int, *, isr: tuple[int, ...] = (ME,), topic: str = "t"
) -> Partition:
    """Apply the next state of a partition."""
    replicas, partition = harness.broker.services.replicas, partition_of(harness, topic)
    newest = Leadership(leader, partition.leader_epoch + 1, frozenset(isr), replicas.registration)
    replicas.apply(partition, newest)
    harness.broker.tick(harness.now_ms)  # deliver
    return partition


@pytest.fixture
def harness() -> BrokerHarness:
    harness = BrokerHarness()
    harness.create_topic("t")
    harness.produce("t", b"first")
    return harness


def produced(pending: Any) -> Any:
    return pending.response.responses[0].partition_responses[0]


@pytest.mark.parametrize("leader", [OTHER, NO_LEADER])
@pytest.mark.parametrize("acks", [-1, 1])
def test_a_produce_that_waits_gets_not_leader_when_the_role_ends(
    harness: BrokerHarness, leader: int, acks: int
) -> None:
    pending = harness.send(produce_request("t", 0, batch(b"x"), acks=acks))
    assert pending.waits
    apply(harness, leader)
    part = produced(pending)
    assert (part.error_code, part.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    harness.sync()  # the sync in flight changes nothing


def test_a_produce_that_waits_does_not_succeed_in_the_next_leader_epoch(
    harness: BrokerHarness,
) -> None:
    """(1) A produce waits in epoch 1. (2) Another broker leads in epoch 2, this broker again in epoch 3."""
    pending = harness.send(produce_request("t", 0, batch(b"x")))
    partition = partition_of(harness)
    before = partition.leader_epoch
    newest = Leadership(
        ME, before + 2, frozenset({ME}), harness.broker.services.replicas.registration
    )
    harness.broker.services.replicas.apply(partition, newest)
    harness.sync()
    assert produced(pending).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert harness.produce("t", b"y").base_offset == 2


@pytest.mark.parametrize("leader", [OTHER, NO_LEADER])
def test_a_delayed_fetch_gets_not_leader_when_the_role_ends(
    harness: BrokerHarness, leader: int
) -> None:
    pending = harness.send(fetch_request(("t", 0, 1), max_wait_ms=10_000))
    assert pending.waits
    apply(harness, leader)
    part = pending.response.responses[0].partitions[0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("leader", "role"), [(OTHER, Role.FOLLOWER), (NO_LEADER, Role.OFFLINE)])
def test_without_the_role_of_the_leader_clients_are_refused(
    harness: BrokerHarness, leader: int, role: Role
) -> None:
    partition = apply(harness, leader)
    assert partition.role is role
    not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced(harness.send(produce_request("t", 0, batch(b"x")))).error_code == not_leader
    assert harness.fetch("t", 0).error_code == not_leader
    assert list_offsets(harness, -1).error_code == not_leader
    assert delete_records(harness, 1).error_code == not_leader
    assert partition.log.log_end_offset == 1


def list_offsets(harness: BrokerHarness, timestamp: int, version: int = 9, **fields: int) -> Any:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp, **fields)
    topic = ListOffsetsTopic(name="t", partitions=[wanted])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic])
    return harness.call(request, version).topics[0].partitions[0]


def delete_records(harness: BrokerHarness, offset: int) -> Any:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[wanted])
    return (
        harness.call(DeleteRecordsRequest(topics=[topic], timeout_ms=1000)).topics[0].partitions[0]
    )


def test_the_leader_epoch_of_a_client_is_compared_before_the_role(harness: BrokerHarness) -> None:
    partition = apply(harness, OTHER)
    epoch = partition.leader_epoch
    codes = [
        list_offsets(harness, -1, current_leader_epoch=each).error_code
        for each in (epoch - 1, epoch, epoch + 1)
    ]
    assert codes == [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ]


def test_a_state_with_an_older_leader_epoch_changes_nothing(harness: BrokerHarness) -> None:
    partition = apply(harness, ME)
    older = Leadership(OTHER, partition.leader_epoch - 1, frozenset({OTHER}), 0)
    harness.broker.services.replicas.apply(partition, older)
    assert partition.role is Role.LEADER
    assert harness.produce("t", b"x").error_code == ErrorCode.NONE


def test_each_partition_has_its_own_leader_epoch(harness: BrokerHarness) -> None:
    harness.create_topic("u")
    before = partition_of(harness, "u").leader_epoch
    apply(harness, ME)
    assert partition_of(harness).leader_epoch == before + 1
    assert partition_of(harness, "u").leader_epoch == before
    assert partition_of(harness).log.leader_epoch == before + 1


def test_the_sync_of_a_follower_does_not_raise_its_high_watermark(harness: BrokerHarness) -> None:
    harness.send(produce_request("t", 0, batch(b"x")))
    partition = apply(harness, OTHER)
    harness.sync()
    assert (partition.log.synced_offset, partition.high_watermark) == (2, 1)


def test_only_the_leader_applies_retention(harness: BrokerHarness) -> None:
    assert not partition_of(harness).log.follows
    assert apply(harness, OTHER).log.follows
    assert apply(harness, NO_LEADER).log.follows
    assert not apply(harness, ME).log.follows


def test_the_coordinator_of_groups_follows_the_role() -> None:
    harness = BrokerHarness()
    harness.create_topic("t")
    harness.create_offsets_topic()
    assert commit_offset(harness) == ErrorCode.NONE
    offsets = harness.broker.services.partitions.of(
        harness.broker.services.topics.require(OFFSETS_TOPIC)
    )
    replicas = harness.broker.services.replicas
    for leader, error in ((OTHER, ErrorCode.NOT_COORDINATOR), (ME, ErrorCode.NONE)):
        for partition in offsets:
            assert partition is not None
            newest = partition.newest._replace(
                leader=leader, leader_epoch=partition.leader_epoch + 1
            )
            replicas.apply(partition, newest)
        harness.broker.tick(harness.now_ms)
        assert commit_offset(harness) == error


def commit_offset(harness: BrokerHarness) -> ErrorCode:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic]
    )
    response = harness.call(request, 8)
    return ErrorCode(response.topics[0].partitions[0].error_code)


# Several in-sync replicas


def test_the_high_watermark_waits_for_all_in_sync_replicas(harness: BrokerHarness) -> None:
    partition = apply(harness, ME, isr=(ME, OTHER))
    assert partition.acks is not None
    committed = harness.send(produce_request("t", 0, batch(b"x"), acks=-1))
    written = harness.send(produce_request("t", 0, batch(b"y"), acks=1))
    assert committed.waits
    assert written.waits
    harness.sync()
    assert produced(written).error_code == ErrorCode.NONE
    assert committed.waits
    assert partition.high_watermark == 1
    partition.acks.progress.report(OTHER, 2)
    harness.send(produce_request("t", 0, batch(b"z")))
    harness.sync()
    assert partition.high_watermark == 2
    assert produced(committed).error_code == ErrorCode.NONE


def test_acks_of_the_leader_alone_need_no_wait_if_records_are_synced_later() -> None:
    harness = BrokerHarness()
    configs: dict[str, Any] = {"headrace.durability": "os"}
    harness.create_topic("t", **configs)
    partition = apply(harness, ME, isr=(ME, OTHER))
    assert not harness.send(produce_request("t", 0, batch(b"x"), acks=1)).waits
    assert harness.send(produce_request("t", 0, batch(b"y"), acks=-1)).waits
    assert partition.high_watermark == 0


def test_a_smaller_isr_commits_what_waits(harness: BrokerHarness) -> None:
    partition = apply(harness, ME, isr=(ME, OTHER))
    pending = harness.send(produce_request("t", 0, batch(b"x")))
    harness.sync()
    assert pending.waits
    alone = partition.newest._replace(isr=frozenset({ME}))
    harness.broker.services.replicas.apply(partition, alone)
    harness.broker.tick(harness.now_ms)
    assert produced(pending).base_offset == 1


def test_acks_of_every_kind_get_not_leader_when_the_role_ends(harness: BrokerHarness) -> None:
    partition = apply(harness, ME, isr=(ME, OTHER))
    errors: list[ErrorCode] = []
    for acks in (-1, 1, 2):
        partition.wait(acks, 9, errors.append)
    apply(harness, OTHER)
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3


# KIP-207


def test_the_latest_offset_is_not_available_until_the_high_watermark_reaches_the_epoch(
    harness: BrokerHarness,
) -> None:
    harness.send(produce_request("t", 0, batch(b"x")))
    partition = apply(harness, ME, isr=(ME, OTHER))
    assert partition.acks is not None
    assert (partition.high_watermark, partition.epoch_start_offset) == (1, 2)
    assert list_offsets(harness, -1).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert list_offsets(harness, -1, version=4).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert list_offsets(harness, harness.now_ms + 1).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert list_offsets(harness, -2).offset == 0
    assert list_offsets(harness, 0).offset == 0  # a record below the high watermark
    partition.acks.progress.report(OTHER, 2)
    harness.send(produce_request("t", 0, batch(b"y")))
    harness.sync()
    assert list_offsets(harness, -1).offset == 2


def test_with_one_replica_the_latest_offset_is_available_at_once(harness: BrokerHarness) -> None:
    harness.send(produce_request("t", 0, batch(b"x")))
    harness.crash()
    assert list_offsets(harness, -1).offset == 2
