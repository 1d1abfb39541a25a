"""DeleteRecords on partitions with several replicas: the response waits until the live replicas have deleted."""

from __future__ import annotations

import pytest

from headrace.broker.partitions.record_deletion import LONGEST_WAIT_MS, DelayedDeletion
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.fixtures.broker_harness import Pending
from tests.fixtures.cluster import SimulatedCluster


@pytest.fixture
def cluster() -> SimulatedCluster:
    """Return a cluster with the topic "t", led by broker 1, with four records on three replicas."""
    made = SimulatedCluster(3, in_memory=True)
    made.create_topic("t", replicas=[(1, 2, 3)])
    for number in range(4):
        assert made.produce("t", bytes([number])).error_code == 0
    made.run_until(lambda: made.is_in_sync("t"))
    return made


def send(
    cluster: SimulatedCluster, broker_id: int = 1, offset: int = 3, timeout_ms: int = 5_000
) -> Pending:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsTopic(name="t", partitions=[wanted])]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
    return cluster.brokers[broker_id].send(request)


def outcome(cluster: SimulatedCluster, pending: Pending) -> tuple[ErrorCode, int]:
    cluster.run_until(lambda: pending.done)
    (result,) = pending.response.topics[0].partitions
    return ErrorCode(result.error_code), result.low_watermark


def starts(cluster: SimulatedCluster) -> list[int]:
    return [cluster.replica(broker, "t").log_start_offset for broker in (1, 2, 3)]


def test_the_response_comes_when_all_replicas_have_deleted(cluster: SimulatedCluster) -> None:
    before_ms = cluster.now_ms
    pending = send(cluster)
    assert pending.waits
    assert outcome(cluster, pending) == (ErrorCode.NONE, 3)
    assert starts(cluster) == [3, 3, 3]
    assert cluster.now_ms - before_ms < 100, "followers fetch at once, and not when a wait ends"


def test_a_replica_that_does_not_delete_in_time_makes_the_request_time_out(
    cluster: SimulatedCluster,
) -> None:
    cluster.cut(1, 3)
    assert outcome(cluster, send(cluster, timeout_ms=2_000)) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    assert starts(cluster) == [3, 3, 0]
    cluster.heal()
    assert outcome(cluster, send(cluster, timeout_ms=60_000)) == (ErrorCode.NONE, 3)
    assert starts(cluster) == [3, 3, 3]


def test_a_request_without_time_does_not_wait(cluster: SimulatedCluster) -> None:
    pending = send(cluster, timeout_ms=0)
    assert outcome(cluster, pending) == (ErrorCode.REQUEST_TIMED_OUT, 0)


def test_a_replica_that_is_not_live_is_not_waited_for(cluster: SimulatedCluster) -> None:
    cluster.kill(3)
    pending = send(cluster, timeout_ms=60_000)
    cluster.advance(2_000)
    assert pending.waits, "the session of broker 3 has not expired"
    assert outcome(cluster, pending) == (ErrorCode.NONE, 3)


def test_a_leader_that_is_replaced_ends_the_wait(cluster: SimulatedCluster) -> None:
    cluster.cut(1, 3)
    pending = send(cluster, timeout_ms=60_000)
    cluster.advance(1_000)
    assert pending.waits
    cluster.elect("t", 0, 2)
    assert outcome(cluster, pending) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_follower_refuses_to_delete(cluster: SimulatedCluster) -> None:
    assert outcome(cluster, send(cluster, 2)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_broker_without_a_replica_refuses_to_delete() -> None:
    cluster = SimulatedCluster(2, in_memory=True)
    cluster.create_topic("t", replicas=[(1,)])
    cluster.run_until(lambda: cluster.brokers[2].broker.services.topics.get("t"))
    assert outcome(cluster, send(cluster, 2)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_deletion_that_all_replicas_have_done_is_answered_at_once(
    cluster: SimulatedCluster,
) -> None:
    outcome(cluster, send(cluster))
    cluster.advance(1_000)
    pending = send(cluster, offset=2, timeout_ms=0)
    assert outcome(cluster, pending) == (ErrorCode.NONE, 3)


def test_a_restarted_follower_is_waited_for_until_it_has_fetched(cluster: SimulatedCluster) -> None:
    outcome(cluster, send(cluster))
    cluster.cut(1, 3)
    cluster.kill(3, ends_session=True)
    cluster.start(3)
    cluster.advance(1_000)
    pending = send(cluster, offset=2, timeout_ms=60_000)
    cluster.advance(1_000)
    assert pending.waits
    cluster.heal()
    assert outcome(cluster, pending) == (ErrorCode.NONE, 3)


@pytest.mark.parametrize(
    ("timeout_ms", "waits_ms"),
    [(2_000, 2_000), pytest.param(2**31 - 1, LONGEST_WAIT_MS, marks=pytest.mark.slow)],
)
def test_the_wait_of_a_closed_connection_ends_with_its_timeout(
    cluster: SimulatedCluster, timeout_ms: int, waits_ms: int
) -> None:
    cluster.cut(1, 3)
    pending = send(cluster, timeout_ms=timeout_ms)
    watchers = cluster.replica(1, "t").watchers
    pending.cancel()
    cluster.advance(waits_ms - 1)
    assert any(isinstance(each, DelayedDeletion) for each in watchers)
    cluster.advance(1)
    assert not any(isinstance(each, DelayedDeletion) for each in watchers)
