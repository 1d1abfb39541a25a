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
