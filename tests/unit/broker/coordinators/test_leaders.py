"""The coordinator of a key is the broker that leads the key's partition."""

from __future__ import annotations

from headrace.broker.coordinators.leaders import NO_LEADER, coordinator_of, leader_of
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.cluster.membership import LiveBroker, Membership
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import PartitionState, encode
from headrace.core.coordinator.partitioning import partition_for_key
from headrace.errors import ErrorCode
from headrace.ports import Put
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.fixtures.broker_harness import BrokerHarness


def led_by(harness: BrokerHarness, name: str, partition: int, broker_id: int) -> None:
    """Store that another broker leads a partition."""
    key = state_key(harness.broker.services.topics.require(name).topic_id, partition)
    state = PartitionState(broker_id, 7, (broker_id,), (), 0)
    harness.metadata.commit([], [Put(key, encode(state))])
    harness.advance(0)


def test_the_own_broker_coordinates_the_keys_whose_partitions_it_leads():
    harness = BrokerHarness(offsets_topic_num_partitions=5, transaction_state_log_num_partitions=3)
    keys = [f"key{number}" for number in range(30)]
    for kind in (0, 1):
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)
        found = harness.call(request).coordinators
        assert {(each.error_code, each.node_id) for each in found} == {(0, 1)}
    topics = harness.broker.services.topics
    led_by(harness, OFFSETS_TOPIC, 2, broker_id=2)
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=keys)
    for each in harness.call(request).coordinators:
        other = partition_for_key(each.key, 5) == 2
        assert each.error_code == (ErrorCode.COORDINATOR_NOT_AVAILABLE if other else 0)
        assert each.node_id == (-1 if other else 1)
        assert coordinator_of(topics, OFFSETS_TOPIC, each.key) == (2 if other else 1)
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=keys)
    assert {each.node_id for each in harness.call(request).coordinators} == {1}


def test_every_broker_names_the_address_of_a_coordinator_on_another_broker():
    harness = BrokerHarness(offsets_topic_num_partitions=1)
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    harness.call(request)
    led_by(harness, OFFSETS_TOPIC, 0, broker_id=2)
    membership = Membership()
    membership.live = {
        1: LiveBroker(1, 1),
        2: LiveBroker(2, 1, endpoints={"PLAINTEXT": ("broker-2", 9002)}),
    }
    harness.replace_services(membership=membership)
    (found,) = harness.call(request).coordinators
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 2, "broker-2", 9002)
    membership.live = {1: LiveBroker(1, 1)}
    (found,) = harness.call(request).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


def test_a_partition_that_does_not_exist_has_no_leader():
    harness = BrokerHarness(transaction_state_log_num_partitions=3)
    topics = harness.broker.services.topics
    assert coordinator_of(topics, TRANSACTIONS_TOPIC, "id") == NO_LEADER
    harness.create_topic("t", partitions=2)
    assert [leader_of(topics, "t", index) for index in (-1, 0, 1, 2)] == [-1, 1, 1, -1]
