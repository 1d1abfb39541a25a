"""Metadata, DescribeCluster and DescribeTopicPartitions show the live brokers and the states of partitions."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.cluster.membership import LiveBroker, Membership
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import REGISTRATIONS, PartitionState, RegistrationRecord, encode
from headrace.errors import ErrorCode
from headrace.ports import Put
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from headrace.protocol.messages.metadata import MetadataRequest
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.metadata_stores import commit


def live(broker_id: int, rack: str | None = None, listener: str = "PLAINTEXT") -> LiveBroker:
    address = (f"broker-{broker_id}", 9000 + broker_id)
    return LiveBroker(broker_id, 1, endpoints={listener: address}, rack=rack)


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness(broker_id=1)
    membership = Membership()
    membership.live = {1: live(1, "a"), 2: live(2, "b"), 3: live(3, listener="INTERNAL")}
    membership.controller_id = 2
    made.replace_services(membership=membership)
    made.create_topic("t")
    return made


def show(harness: BrokerHarness, state: PartitionState) -> None:
    """Let the image have a state of the partition, whose replicas are the brokers 1, 2, 3 and 4."""
    topic = harness.broker.services.topics.require("t")
    topic.replicas[0] = (1, 2, 3, 4)
    found: list[object] = []
    key = state_key(topic.topic_id, 0)
    harness.metadata.commit([], [Put(key, encode(state))]).on_done(found.append)
    harness.broker.tick(harness.now_ms)
    assert harness.broker.services.topics.state(topic, 0).leader_epoch == state.leader_epoch


def partition(harness: BrokerHarness) -> Any:
    (topic,) = harness.call(MetadataRequest(topics=None)).topics
    return topic.partitions[0]


def test_the_live_brokers_have_the_addresses_of_the_clients_listener(harness):
    expected = [(1, "127.0.0.1", 9092, "a"), (2, "broker-2", 9002, "b")]
    response = harness.call(MetadataRequest(topics=[]))
    assert [(b.node_id, b.host, b.port, b.rack) for b in response.brokers] == expected
    assert response.controller_id == 2
    described = harness.call(DescribeClusterRequest())
    assert [(b.broker_id, b.host, b.port, b.rack) for b in described.brokers] == expected
    assert described.controller_id == 2


def test_a_registered_broker_that_is_not_live_is_fenced_and_shown_on_request(harness):
    registrations = {
        3: RegistrationRecord(1),
        7: RegistrationRecord(1, "", {"PLAINTEXT": ("broker-7", 9007)}, "b"),
        8: RegistrationRecord(1, "", {"INTERNAL": ("broker-8", 9008)}, "c"),
        9: RegistrationRecord(1),
    }
    for broker_id, record in registrations.items():
        commit(harness.metadata, [], [Put(f"{REGISTRATIONS}{broker_id}", encode(record))])
    harness.broker.tick(harness.now_ms)
    described = harness.call(DescribeClusterRequest(include_fenced_brokers=True), 2)
    assert [(b.broker_id, b.host, b.port, b.rack, b.is_fenced) for b in described.brokers] == [
        (1, "127.0.0.1", 9092, "a", False),
        (2, "broker-2", 9002, "b", False),
        (7, "broker-7", 9007, "b", True),
        (8, "", -1, "c", True),
        (9, "", -1, None, True),
    ]
    described = harness.call(DescribeClusterRequest(), 2)
    assert [b.broker_id for b in described.brokers] == [1, 2]


def test_any_live_broker_stands_for_a_controller_that_is_not_known(harness):
    harness.broker.services.membership.controller_id = -1
    assert harness.call(MetadataRequest(topics=[])).controller_id == 1
    assert harness.call(DescribeClusterRequest()).controller_id == 1


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (5, ErrorCode.LEADER_NOT_AVAILABLE),
        (6, ErrorCode.LISTENER_NOT_FOUND),
        (13, ErrorCode.LISTENER_NOT_FOUND),
    ],
)
def test_a_leader_without_the_clients_listener_is_no_leader_for_the_client(harness, version, error):
    show(harness, PartitionState(3, 7, (3, 1), (), 1))
    (topic,) = harness.call(MetadataRequest(topics=None), version).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].leader_id) == (error, -1)


def test_a_partition_has_the_leader_and_the_replicas_of_its_state(harness):
    show(harness, PartitionState(2, 7, (2, 1), (3,), 1))
    found = partition(harness)
    assert (found.error_code, found.leader_id, found.leader_epoch) == (0, 2, 7)
    assert (found.replica_nodes, found.isr_nodes) == ([1, 2, 3, 4], [2, 1])
    assert found.offline_replicas == [3, 4]
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
    described = harness.call(request).topics[0].partitions[0]
    assert (described.leader_id, described.leader_epoch) == (2, 7)
    assert (described.isr_nodes, described.eligible_leader_replicas) == ([2, 1], [3])
    assert described.offline_replicas == [3, 4]


@pytest.mark.parametrize("leader", [-1, 4])
def test_a_partition_without_a_live_leader_is_not_available(harness, leader):
    show(harness, PartitionState(leader, 7, (leader,), (), 1))
    found = partition(harness)
    assert found.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert (found.leader_id, found.leader_epoch) == (-1, 7)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
    described = harness.call(request).topics[0].partitions[0]
    assert (described.error_code, described.leader_id) == (0, -1)
