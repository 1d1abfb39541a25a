"""headrace.acks: the replicas that a topic demands for each record, whatever its producers ask for."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.context import CloseConnection
from headrace.errors import ErrorCode
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.fixtures.cluster import SimulatedCluster
from tests.unit.broker.replication.test_replication import deregister, isr, part, register, send

TOPIC = 2
"""The type of a resource that is a topic."""


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(3)
    register(cluster)
    cluster.create_topic("t", replicas=[(1, 2, 3)], headrace_acks="2")
    cluster.advance(100)
    return cluster


def change_acks(cluster: SimulatedCluster, value: str) -> Any:
    config = AlterableConfig(name="headrace.acks", config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = cluster.brokers[1].call(request).responses
    cluster.advance(20)
    return result


@pytest.mark.parametrize("acks", [1, 2])
def test_a_record_waits_for_the_acks_of_its_topic(cluster: SimulatedCluster, acks: int) -> None:
    cluster.cut(1, 2)
    cluster.cut(1, 3)
    cluster.advance(600)
    pending = send(cluster, b"a", acks)
    cluster.advance(1_000)
    assert not pending.done
    cluster.links.way(1, 2).is_cut = cluster.links.way(2, 1).is_cut = False
    cluster.run_until(lambda: pending.done)
    assert part(pending).error_code == ErrorCode.NONE
    assert cluster.replica(2, "t").log.log_end_offset == 1
    assert cluster.replica(1, "t").high_watermark == 0, "broker 3 does not have the record"


@pytest.mark.parametrize("acks", [1, 2, -1])
def test_too_few_in_sync_replicas_for_the_topic_refuse_all_acks(
    cluster: SimulatedCluster, acks: int
) -> None:
    deregister(cluster, 2)
    deregister(cluster, 3)
    assert isr(cluster) == {1}
    refused = part(send(cluster, b"a", acks))
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "has 1 replicas in sync: too few for " in refused.error_message
    with pytest.raises(CloseConnection, match="NOT_ENOUGH_REPLICAS"):
        send(cluster, b"a", 0)
    assert cluster.replica(1, "t").log.log_end_offset == 0


@pytest.mark.parametrize("acks", [1, 2, -1])
def test_a_record_that_waits_fails_when_too_few_replicas_are_in_sync(
    cluster: SimulatedCluster, acks: int
) -> None:
    cluster.cut(1, 2)
    cluster.cut(1, 3)
    pending = send(cluster, b"a", acks, timeout_ms=60_000)
    deregister(cluster, 2)
    deregister(cluster, 3)
    cluster.run_until(lambda: pending.done)
    assert part(pending).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_change_of_the_acks_concerns_the_next_record(cluster: SimulatedCluster) -> None:
    assert change_acks(cluster, "1").error_code == ErrorCode.NONE
    cluster.cut(1, 2)
    cluster.cut(1, 3)
    pending = send(cluster, b"a", 1)
    cluster.run_until(lambda: pending.done, timeout_ms=20)
    assert part(pending).error_code == ErrorCode.NONE
    assert change_acks(cluster, "3").error_code == ErrorCode.NONE
    pending = send(cluster, b"b", 1)
    cluster.advance(1_000)
    assert not pending.done


@pytest.mark.parametrize("value", ["0", "4", "-1", "all"])
def test_acks_of_a_topic_are_between_one_and_its_replicas(
    cluster: SimulatedCluster, value: str
) -> None:
    assert change_acks(cluster, value).error_code == ErrorCode.INVALID_CONFIG
    assert cluster.replica(1, "t").least_acks == 2


@pytest.mark.parametrize(("replicas", "error"), [((1, 2), 0), ((1,), ErrorCode.INVALID_CONFIG)])
def test_a_topic_is_not_created_with_more_acks_than_replicas(
    cluster: SimulatedCluster, replicas: tuple[int, ...], error: int
) -> None:
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
    topic = CreatableTopic(
        name="new",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[assignment],
        configs=[CreatableTopicConfig(name="headrace.acks", value="2")],
    )
    response = cluster.brokers[1].call(CreateTopicsRequest(topics=[topic], timeout_ms=5_000))
    assert response.topics[0].error_code == error


def test_the_acks_of_a_topic_are_described(cluster: SimulatedCluster) -> None:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
    (found,) = cluster.brokers[2].call(DescribeConfigsRequest(resources=[resource])).results
    (config,) = [each for each in found.configs if each.name == "headrace.acks"]
    assert (config.value, config.config_type) == ("2", 3)


def test_a_partition_with_one_replica_needs_no_acks_of_others() -> None:
    cluster = SimulatedCluster(1)
    cluster.create_topic("t", replicas=[(1,)], headrace_acks="2")  # not through CreateTopics
    assert cluster.produce("t", b"a", acks=1).base_offset == 0
