"""Requests of administrators to a broker of a cluster: replicas that stay, and the resources of all brokers."""

from __future__ import annotations

import pytest

from headrace.config.resources import ConfigResourceType
from headrace.errors import ErrorCode
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.fixtures.cluster import SimulatedCluster


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(3)
    cluster.create_topic("t", replicas=[(2, 1)])
    return cluster


@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ([2, 1], ErrorCode.NONE),
        ([1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([2, 1, 3], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_a_reassignment_succeeds_only_if_it_changes_nothing(
    cluster: SimulatedCluster, replicas: list[int] | None, error: ErrorCode
) -> None:
    wanted = ReassignablePartition(partition_index=0, replicas=replicas)
    topic = ReassignableTopic(name="t", partitions=[wanted])
    for broker in cluster.brokers.values():
        response = broker.call(AlterPartitionReassignmentsRequest(topics=[topic]))
        assert response.responses[0].partitions[0].error_code == error


@pytest.mark.parametrize("kind", [ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER])
def test_the_resources_of_all_live_brokers_are_listed(
    cluster: SimulatedCluster, kind: ConfigResourceType
) -> None:
    for broker in cluster.brokers.values():
        response = broker.call(ListConfigResourcesRequest(resource_types=[kind]))
        assert [each.resource_name for each in response.config_resources] == ["1", "2", "3"]


def quorum(cluster: SimulatedCluster, broker_id: int) -> DescribeQuorumResponse:
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=[partition])
    response: DescribeQuorumResponse = cluster.brokers[broker_id].call(
        DescribeQuorumRequest(topics=[topic]), 2
    )
    return response


def test_the_controller_leads_the_quorum_of_all_brokers() -> None:
    cluster = SimulatedCluster(3, in_memory=True)
    cluster.advance(100)
    controller = cluster.brokers[1].broker.services.membership.controller_id
    found = [quorum(cluster, broker_id) for broker_id in (1, 2, 3)]
    parts = [each.topics[0].partitions[0] for each in found]
    assert [each.leader_id for each in parts] == [controller] * 3
    assert len({each.leader_epoch for each in parts}) == 1
    assert [[v.replica_id for v in each.current_voters] for each in parts] == [[1, 2, 3]] * 3

    cluster.kill(controller, ends_session=True)
    other = next(each for each in (1, 2, 3) if each != controller)
    membership = cluster.brokers[other].broker.services.membership
    cluster.run_until(lambda: membership.controller_id not in {-1, controller})
    after = quorum(cluster, other)
    (part,) = after.topics[0].partitions
    assert part.leader_id == membership.controller_id
    assert part.leader_epoch > parts[0].leader_epoch
    gone = [v.replica_id for v in part.current_voters if v.last_fetch_timestamp == -1]
    assert gone == [controller]
