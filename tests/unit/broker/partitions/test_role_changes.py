"""Roles of replicas that follow from states and registrations in the metadata store."""

from __future__ import annotations

from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import (
    REGISTRATIONS,
    PartitionState,
    RegistrationRecord,
    encode,
)
from headrace.core.replica.role import Role
from headrace.errors import ErrorCode
from headrace.ports import Put
from headrace.protocol.messages.metadata import MetadataRequest
from tests.fixtures.broker_harness import BrokerHarness, batch, produce_request, values

NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER


def store_state(harness: BrokerHarness, state: PartitionState, partition: int = 0) -> None:
    topic_id = harness.broker.services.topics.require("t").topic_id
    harness.metadata.commit([], [Put(state_key(topic_id, partition), encode(state))])


def apply_changes(harness: BrokerHarness) -> None:
    harness.advance(0)
    while harness.step():
        pass


def epochs(harness: BrokerHarness) -> list[int]:
    (topic,) = harness.call(MetadataRequest(topics=None)).topics
    return [partition.leader_epoch for partition in topic.partitions]


def test_an_election_of_another_broker_ends_the_role_of_the_leader() -> None:
    harness = BrokerHarness()
    harness.create_topic("t", partitions=2)
    harness.produce("t", b"a")
    store_state(harness, PartitionState(2, 5, (1, 2)))
    apply_changes(harness)
    assert harness.produce("t", b"b").error_code == NOT_LEADER
    assert harness.fetch("t", 0).error_code == NOT_LEADER
    assert harness.produce("t", b"b", partition=1).error_code == NONE
    partition = harness.broker.services.partitions.find("t", 0)
    assert partition is not None
    assert (partition.role, partition.leader_epoch) == (Role.FOLLOWER, 5)


def test_a_produce_that_waits_for_a_sync_is_refused_when_the_role_ends() -> None:
    harness = BrokerHarness()
    harness.create_topic("t", headrace_durability="fsync")
    pending = harness.send(produce_request("t", 0, batch(b"a")))
    assert not pending.done
    store_state(harness, PartitionState(2, 5, (1, 2)))
    apply_changes(harness)
    (topic,) = pending.response.responses
    assert topic.partition_responses[0].error_code == NOT_LEADER


def test_a_broker_that_is_elected_again_leads_in_the_new_epoch() -> None:
    harness = BrokerHarness()
    harness.create_topic("t")
    harness.produce("t", b"a")
    store_state(harness, PartitionState(2, 5, (1, 2)))
    apply_changes(harness)
    store_state(harness, PartitionState(1, 6, (1,), (), 0))
    apply_changes(harness)
    assert epochs(harness) == [6]
    assert harness.produce("t", b"b").base_offset == 1
    assert values(harness.fetch("t", 1).records) == [b"b"]
    harness.restart()
    assert epochs(harness) == [7]


def test_only_the_newest_of_several_states_decides() -> None:
    harness = BrokerHarness()
    harness.create_topic("t")
    store_state(harness, PartitionState(2, 5, (1, 2)))
    store_state(harness, PartitionState(1, 6, (1,), (), 0))
    apply_changes(harness)
    assert epochs(harness) == [6]
    assert harness.produce("t", b"b").error_code == NONE


def test_a_later_registration_of_the_broker_ends_the_roles_of_this_process() -> None:
    harness = BrokerHarness()
    harness.create_topic("t", partitions=3)
    key = f"{REGISTRATIONS}1"
    harness.metadata.commit([], [Put(key, encode(RegistrationRecord(1)))])
    apply_changes(harness)
    for partition in range(3):
        assert harness.produce("t", b"a", partition=partition).error_code == NOT_LEADER


def test_a_state_that_changes_while_partitions_are_opened_is_in_force_when_they_are_shown() -> None:
    harness = BrokerHarness()
    harness.create_topic("t", partitions=10)
    topics = harness.broker.services.topics
    topic = topics.require("t")
    work = topics.opening.open_missing(topic, harness.now_ms)
    topic.replicas = [*topic.replicas, (1,), (1,)]
    topic.directory_ids = [*topic.directory_ids, "", ""]
    next(work)
    store_state(harness, PartitionState(2, 5, (1, 2)), partition=10)
    harness.broker.services.metadata.tick(harness.now_ms)
    for _ in work:
        pass
    shown = harness.broker.services.partitions.of(topic)
    assert [partition.role for partition in shown[10:] if partition is not None] == [
        Role.FOLLOWER,
        Role.LEADER,
    ]


def test_roles_of_many_partitions_change_in_steps() -> None:
    harness = BrokerHarness()
    harness.create_topic("t", partitions=4_000)
    while harness.step():
        pass
    key = f"{REGISTRATIONS}1"
    harness.metadata.commit([], [Put(key, encode(RegistrationRecord(1)))])
    harness.broker.tick(harness.now_ms)
    led = len(harness.broker.services.partitions.led("t"))
    assert 0 < led < 4_000
    apply_changes(harness)
    assert harness.broker.services.partitions.led("t") == []
