"""ElectLeaders in a cluster: the controller elects preferred leaders, and leaders that are not in sync."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.cluster.records import CONTROLLER_KEY, ControllerRecord, decode
from headrace.errors import ErrorCode
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tests.fixtures.cluster import SimulatedCluster

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(3, in_memory=True)
    cluster.run_until(lambda: controller(cluster) >= 0)
    cluster.advance(100)
    return cluster


def controller(cluster: SimulatedCluster) -> int:
    entry = cluster.content.get(CONTROLLER_KEY)
    return -1 if entry is None else decode(entry, ControllerRecord).broker


def elect(cluster: SimulatedCluster, kind: int, *indexes: int, version: int = 2) -> Any:
    named = [TopicPartitions(topic="t", partitions=list(indexes))] if indexes else None
    request = ElectLeadersRequest(election_type=kind, topic_partitions=named)
    return cluster.brokers[controller(cluster)].call(request, version)


def codes(response: Any) -> dict[int, int]:
    return {
        each.partition_id: each.error_code
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


def test_the_first_replica_is_elected_if_it_is_in_sync(cluster: SimulatedCluster) -> None:
    cluster.create_topic("t", replicas=[(1, 2, 3)] * 40, leaders=[2] * 40)
    cluster.elect("t", 1, 2, isr=(2, 3))
    cluster.elect("t", 2, 1)
    cluster.cut(1, 2)
    cluster.cut(1, 3)
    cluster.advance(100)
    found = codes(elect(cluster, PREFERRED, 0, *range(41)))
    assert (found.pop(1), found.pop(2), found.pop(40)) == (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert set(found.values()) == {ErrorCode.NONE}
    assert [cluster.leader("t", index) for index in range(40)] == [1, 2, *[1] * 38]


def test_an_election_of_all_partitions_leaves_out_those_that_need_none(
    cluster: SimulatedCluster,
) -> None:
    cluster.create_topic("t", replicas=[(1, 2), (2, 1), (1, 3)], leaders=[2, 2, 3])
    assert codes(elect(cluster, PREFERRED)) == {0: ErrorCode.NONE, 2: ErrorCode.NONE}
    assert codes(elect(cluster, PREFERRED)) == {}


def test_an_unclean_election_elects_a_replica_that_is_not_in_sync(
    cluster: SimulatedCluster,
) -> None:
    leader = next(each for each in cluster.brokers if each != controller(cluster))
    other = next(each for each in cluster.brokers if each not in {leader, controller(cluster)})
    cluster.create_topic("t", replicas=[(leader, other), (leader,), (other, leader)])
    cluster.elect("t", 0, leader, isr=(leader,))
    cluster.kill(leader, ends_session=True)
    cluster.advance(1_000)
    assert cluster.leader("t") == leader, "no other replica may lead"
    assert codes(elect(cluster, UNCLEAN, 0, 1, 2)) == {
        0: ErrorCode.NONE,
        1: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        2: ErrorCode.ELECTION_NOT_NEEDED,
    }
    assert cluster.state("t").leader == other
    assert cluster.state("t").isr == (other,)
    journal = cluster.brokers[controller(cluster)].journal
    assert "unclean_leader_elected" in journal.events("error")


@pytest.mark.parametrize("version", [0, 2])
def test_a_broker_that_is_not_the_controller_elects_nothing(
    cluster: SimulatedCluster, version: int
) -> None:
    cluster.create_topic("t", replicas=[(1, 2)], leaders=[2])
    other = next(each for each in cluster.brokers if each != controller(cluster))
    named = [TopicPartitions(topic="t", partitions=[0])]
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=named)
    response = cluster.brokers[other].call(request, version)
    assert codes(response) == {0: ErrorCode.NOT_CONTROLLER}
    assert response.error_code == (ErrorCode.NOT_CONTROLLER if version else ErrorCode.NONE)
    assert cluster.leader("t") == 2


def test_an_election_is_decided_again_when_the_in_sync_replicas_change_meanwhile(
    cluster: SimulatedCluster,
) -> None:
    cluster.create_topic("t", replicas=[(1, 2, 3)] * 3, leaders=[2] * 3)
    number = controller(cluster)
    named = [TopicPartitions(topic="t", partitions=[0, 1, 2])]
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=named)
    pending = cluster.brokers[number].send(request, 2)
    cluster.elect("t", 1, 2)  # the next leader epoch of the same leader
    cluster.run_until(lambda: pending.done)
    assert set(codes(pending.response).values()) == {ErrorCode.NONE}
    assert [cluster.leader("t", index) for index in range(3)] == [1, 1, 1]
