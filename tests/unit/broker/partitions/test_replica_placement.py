"""The replicas of new partitions on the brokers of a simulated cluster: CreateTopics, CreatePartitions, and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.cluster.records import TOPICS, PartitionState, TopicRecord, decode
from headrace.errors import ErrorCode
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.cluster import SimulatedCluster

INVALID_FACTOR = ErrorCode.INVALID_REPLICATION_FACTOR
INVALID_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT


def cluster_of(brokers: int = 3, **options: Any) -> SimulatedCluster:
    """Return a cluster whose brokers know each other. Its internal topics have four partitions."""
    counts = {"offsets_topic_num_partitions": 4, "transaction_state_log_num_partitions": 4}
    cluster = SimulatedCluster(brokers, in_memory=True, **counts, **options)
    cluster.run_until(lambda: knows(cluster, *cluster.brokers))
    return cluster


def knows(cluster: SimulatedCluster, *ids: int) -> bool:
    running = [each for each in cluster.brokers.values() if each.is_running]
    return all(set(each.broker.services.membership.live) == set(ids) for each in running)


def is_known(cluster: SimulatedCluster, name: str = "t") -> bool:
    """Return whether all brokers have a topic."""
    topics = [each.broker.services.topics for each in cluster.brokers.values() if each.is_running]
    return all(each.get(name) for each in topics)


def without_broker_3() -> SimulatedCluster:
    cluster = cluster_of()
    cluster.kill(3, ends_session=True)
    cluster.run_until(lambda: knows(cluster, 1, 2))
    return cluster


def create(
    harness: BrokerHarness,
    name: str = "t",
    count: int = -1,
    factor: int = -1,
    *,
    assignments: Sequence[Sequence[int]] = (),
    validate_only: bool = False,
) -> CreatableTopicResult:
    assigned = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
        for index, brokers in enumerate(assignments)
    ]
    topic = CreatableTopic(
        name=name, num_partitions=count, replication_factor=factor, assignments=assigned
    )
    request = CreateTopicsRequest(topics=[topic], validate_only=validate_only)
    response: CreateTopicsResponse = harness.call(request, 7)
    return response.topics[0]


def grow(
    harness: BrokerHarness,
    count: int,
    assignments: Sequence[Sequence[int]] | None = None,
    *,
    validate_only: bool = False,
) -> ErrorCode:
    assigned = None
    if assignments is not None:
        assigned = [CreatePartitionsAssignment(broker_ids=list(each)) for each in assignments]
    topic = CreatePartitionsTopic(name="t", count=count, assignments=assigned)
    request = CreatePartitionsRequest(topics=[topic], validate_only=validate_only)
    return ErrorCode(harness.call(request).results[0].error_code)


def replicas(cluster: SimulatedCluster, name: str = "t") -> list[tuple[int, ...]]:
    entry = cluster.content.get(TOPICS + name)
    assert entry is not None
    return decode(entry, TopicRecord).replicas


def test_a_topic_has_as_many_replicas_as_the_request_wants() -> None:
    cluster = cluster_of()
    result = create(cluster.brokers[1], count=6, factor=3)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 6, 3)
    assert [sorted(each) for each in replicas(cluster)] == [[1, 2, 3]] * 6
    assert sorted(each[0] for each in replicas(cluster)) == [1, 1, 2, 2, 3, 3]


def test_the_new_partitions_are_served_by_their_brokers() -> None:
    cluster = cluster_of()
    create(cluster.brokers[2], count=3, factor=2)
    cluster.run_until(lambda: is_known(cluster))
    for index in range(3):
        assert cluster.produce("t", b"a", partition=index).error_code == 0
    cluster.run_until(lambda: cluster.is_in_sync("t"))


def test_minus_1_is_the_default_replication_factor() -> None:
    cluster = cluster_of(default_replication_factor=2)
    assert create(cluster.brokers[1], count=2).replication_factor == 2
    assert {len(each) for each in replicas(cluster)} == {2}


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("factor", [4, 32_767, 0, -2])
def test_a_replication_factor_that_is_not_possible_is_refused(
    factor: int, *, validate_only: bool
) -> None:
    cluster = cluster_of()
    result = create(cluster.brokers[1], factor=factor, validate_only=validate_only)
    assert result.error_code == INVALID_FACTOR
    assert cluster.content.get(TOPICS + "t") is None


def test_a_default_replication_factor_above_the_live_brokers_is_refused() -> None:
    cluster = cluster_of(2, default_replication_factor=3)
    assert create(cluster.brokers[1]).error_code == INVALID_FACTOR


def test_no_new_replica_is_on_a_broker_that_is_not_live_if_there_are_enough_live_ones() -> None:
    cluster = without_broker_3()
    assert create(cluster.brokers[1], count=4, factor=2).error_code == 0
    assert {broker for each in replicas(cluster) for broker in each} == {1, 2}


def test_a_broker_that_is_not_live_gets_replicas_if_there_are_not_enough_live_ones() -> None:
    cluster = without_broker_3()
    assert create(cluster.brokers[1], count=4, factor=3).error_code == 0
    assert [each[2] for each in replicas(cluster)] == [3] * 4
    assert sorted(cluster.leader("t", index) for index in range(4)) == [1, 1, 2, 2]
    assert [set(cluster.state("t", index).isr) for index in range(4)] == [{1, 2}] * 4
    refused = create(cluster.brokers[1], "u", factor=4)
    assert refused.error_code == INVALID_FACTOR
    assert "the number of registered brokers is 3" in str(refused.error_message)
    assert cluster.produce("t", b"a").error_code == 0
    cluster.start(3)
    cluster.run_until(lambda: cluster.is_in_sync("t"))


def test_replicas_are_spread_over_racks() -> None:
    cluster = SimulatedCluster(0, in_memory=True)
    for broker_id in range(1, 5):
        cluster.add_broker(broker_id, broker_rack="east" if broker_id <= 2 else "west")
    cluster.run_until(lambda: knows(cluster, 1, 2, 3, 4))
    create(cluster.brokers[1], count=8, factor=2)
    assert all(len({broker <= 2 for broker in each}) == 2 for each in replicas(cluster))
    live = cluster.brokers[1].broker.services.membership.live
    assert [each.rack for each in live.values()] == ["east", "east", "west", "west"]


def test_a_single_broker_has_its_rack_in_metadata() -> None:
    metadata = BrokerHarness(broker_rack="east").call(MetadataRequest(topics=[]))
    assert [each.rack for each in metadata.brokers] == ["east"]


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_request_assigns_the_brokers(*, validate_only: bool) -> None:
    cluster = cluster_of()
    chosen = [(2, 1), (3, 2), (1, 3)]
    result = create(cluster.brokers[1], assignments=chosen, validate_only=validate_only)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 2)
    if not validate_only:
        assert replicas(cluster) == chosen
        assert cluster.state("t", 1) == PartitionState(3, 0, (3, 2))


@pytest.mark.parametrize(
    "assignments", [[(1, 4)], [(1, 1)], [(1, 2), (3,)], [(1,), ()], [(-1,)], [(2**31 - 1,)]]
)
def test_an_assignment_that_is_not_possible_is_refused(assignments: list[tuple[int, ...]]) -> None:
    cluster = cluster_of()
    assert create(cluster.brokers[1], assignments=assignments).error_code == INVALID_ASSIGNMENT
    assert cluster.content.get(TOPICS + "t") is None


def test_an_assigned_broker_that_is_not_live_is_not_in_sync_at_first() -> None:
    cluster = without_broker_3()
    result = create(cluster.brokers[1], assignments=[(3, 2), (1, 3), (1, 2)])
    assert result.error_code == 0
    epochs = [cluster.registration(broker) for broker in range(3)]
    assert cluster.state("t", 0) == PartitionState(2, epochs[2], (2,), (), epochs[2])
    assert cluster.state("t", 1) == PartitionState(1, epochs[1], (1,), (), epochs[1])
    assert cluster.state("t", 2).isr == (1, 2)
    assert cluster.produce("t", b"a", partition=0).error_code == 0
    cluster.start(3)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert create(cluster.brokers[1], "u", assignments=[(3,)]).error_code == 0


def test_an_assignment_without_live_brokers_is_refused() -> None:
    cluster = without_broker_3()
    result = create(cluster.brokers[1], assignments=[(1,), (3,)])
    assert result.error_code == INVALID_ASSIGNMENT


def test_more_assigned_partitions_than_a_commit_has_states_are_created() -> None:
    cluster = without_broker_3()
    assert create(cluster.brokers[1], assignments=[(1, 3)] * 100).error_code == 0
    cluster.run_until(lambda: all(cluster.state("t", index).isr == (1,) for index in (0, 99)))


def test_added_partitions_continue_the_placement() -> None:
    cluster = cluster_of()
    create(cluster.brokers[1], count=2, factor=2)
    before = replicas(cluster)
    cluster.run_until(lambda: is_known(cluster))
    assert grow(cluster.brokers[2], 6, validate_only=True) == 0
    assert replicas(cluster) == before
    assert grow(cluster.brokers[2], 6) == 0
    after = replicas(cluster)
    assert after[:2] == before
    assert sorted(each[0] for each in after) == [1, 1, 2, 2, 3, 3]
    assert sorted(broker for each in after for broker in each) == [1] * 4 + [2] * 4 + [3] * 4


def test_added_partitions_are_on_the_assigned_brokers() -> None:
    cluster = cluster_of()
    create(cluster.brokers[1], assignments=[(1, 2)])
    for wrong in ([[1, 2], [3]], [[1, 2]], [[1, 2], [3, 4]], [[1, 2], [3, 3]], []):
        assert grow(cluster.brokers[1], 3, wrong) == INVALID_ASSIGNMENT
    assert grow(cluster.brokers[1], 3, [[2, 3], [3, 1]]) == 0
    assert replicas(cluster) == [(1, 2), (2, 3), (3, 1)]


def test_an_added_replica_on_a_broker_that_is_not_live_is_not_in_sync_at_first() -> None:
    cluster = without_broker_3()
    create(cluster.brokers[1], assignments=[(1, 2)])
    assert grow(cluster.brokers[1], 2, [[3, 2]]) == 0
    assert (cluster.leader("t", 1), cluster.state("t", 1).isr) == (2, (2,))
    assert grow(cluster.brokers[1], 3, [[3, 4]]) == INVALID_ASSIGNMENT


def test_a_topic_grows_although_a_broker_is_not_live() -> None:
    cluster = cluster_of()
    create(cluster.brokers[1], factor=3)
    cluster.kill(3, ends_session=True)
    cluster.run_until(lambda: knows(cluster, 1, 2))
    assert grow(cluster.brokers[1], 2) == 0
    assert grow(cluster.brokers[1], 3, [[1, 2, 3]]) == 0
    assert sorted(replicas(cluster)[1]) == [1, 2, 3]
    assert (replicas(cluster)[1][2], set(cluster.state("t", 1).isr)) == (3, {1, 2})


def test_no_broker_gets_more_partitions_than_it_can_hold() -> None:
    cluster = cluster_of(2, max_partitions=4)
    too_many = ErrorCode.POLICY_VIOLATION
    assert create(cluster.brokers[1], count=9).error_code == too_many
    assert create(cluster.brokers[1], assignments=[(2,)] * 5).error_code == too_many
    assert create(cluster.brokers[1], assignments=[(2,)] * 3).error_code == 0
    assert create(cluster.brokers[1], "u", assignments=[(1,)]).error_code == 0
    assert grow(cluster.brokers[1], 5, [[2], [2]]) == too_many
    assert grow(cluster.brokers[1], 5, [[2], [1]]) == 0
    assert create(cluster.brokers[1], "v", count=2).error_code == too_many
    assert create(cluster.brokers[2], "v", assignments=[(1,)]).error_code == 0
    cluster.run_until(lambda: all(is_known(cluster, name) for name in "tuv"))
    for each in cluster.brokers.values():
        assert each.broker.services.topics.replica_counts == {1: 3, 2: 4}


def test_the_replicas_of_deleted_topics_do_not_count() -> None:
    cluster = cluster_of(2, max_partitions=4)
    for _ in range(3):
        assert create(cluster.brokers[1], assignments=[(2,)] * 4).error_code == 0
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t", topic_id=bytes(16))])
        assert cluster.brokers[1].call(request).responses[0].error_code == 0


def test_a_topic_that_metadata_creates_has_fewer_replicas_if_there_are_fewer_brokers() -> None:
    cluster = cluster_of(2, default_replication_factor=3)
    wanted = [MetadataRequestTopic(name="t")]
    cluster.brokers[1].call(MetadataRequest(topics=wanted, allow_auto_topic_creation=True))
    cluster.run_until(lambda: cluster.content.get(TOPICS + "t") is not None)
    assert [sorted(each) for each in replicas(cluster)] == [[1, 2]]


@pytest.mark.parametrize(("brokers", "factor", "min_isr"), [(1, 1, "1"), (2, 2, "2"), (4, 3, "2")])
def test_internal_topics_have_three_replicas_or_as_many_as_there_are_brokers(
    brokers: int, factor: int, min_isr: str
) -> None:
    cluster = cluster_of(brokers)
    for kind, name in enumerate((OFFSETS_TOPIC, TRANSACTIONS_TOPIC)):
        cluster.brokers[1].call(FindCoordinatorRequest(key_type=kind, coordinator_keys=["k"]))
        assert {len(each) for each in replicas(cluster, name)} == {factor}
    topic = cluster.brokers[1].broker.services.topics.require(TRANSACTIONS_TOPIC)
    assert topic.settings["min.insync.replicas"] == min_isr


def test_internal_topics_have_as_many_replicas_as_configured() -> None:
    options = {"offsets_topic_replication_factor": 2, "transaction_state_log_replication_factor": 1}
    cluster = cluster_of(3, **options)
    for kind, (name, factor) in enumerate({OFFSETS_TOPIC: 2, TRANSACTIONS_TOPIC: 1}.items()):
        cluster.brokers[1].call(FindCoordinatorRequest(key_type=kind, coordinator_keys=["k"]))
        assert {len(each) for each in replicas(cluster, name)} == {factor}
