"""A replica that a start finds damaged is fetched anew, while another replica is in sync."""

from __future__ import annotations

from typing import Final

import pytest

from headrace.broker.partitions.damaged_replicas import CHECK_INTERVAL_MS
from headrace.errors import ErrorCode
from tests.fixtures.broker_harness import fetch_request, values
from tests.fixtures.cluster import SimulatedCluster

SEGMENT: Final = "t-0/00000000000000000000.log"


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(3)
    cluster.create_topic("t", replicas=[(1, 2, 3)], segment_bytes="100")
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    for number in range(5):
        cluster.produce("t", b"%d" % number)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    return cluster


RECORDS = [b"%d" % number for number in range(5)]


def damage(cluster: SimulatedCluster, broker_id: int) -> None:
    """Stop a broker, and remove its first segment."""
    broker = cluster.brokers[broker_id]
    broker.stop()
    broker.files.remove(SEGMENT)
    broker.files.remove("clean_shutdown")


def set_aside(cluster: SimulatedCluster, broker_id: int) -> list[str]:
    names = cluster.brokers[broker_id].files.list("")
    return [name for name in names if name.startswith("t-0.") and name.endswith("-damaged")]


def is_replaced(cluster: SimulatedCluster, broker_id: int) -> bool:
    return "damaged_replica_replaced" in cluster.brokers[broker_id].journal.events("warning")


@pytest.mark.parametrize("broker_id", [1, 2, 3])
def test_a_damaged_replica_leaves_and_is_set_aside_and_fetched_anew(
    cluster: SimulatedCluster, broker_id: int
) -> None:
    damage(cluster, broker_id)
    cluster.start(broker_id)
    assert "partition_not_served" in cluster.brokers[broker_id].journal.events("error")
    cluster.run_until(lambda: is_replaced(cluster, broker_id))
    assert broker_id not in cluster.state("t").isr, "its log is empty"
    assert cluster.state("t").leader != broker_id
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert values(cluster.log_of(broker_id, "t")) == RECORDS
    (kept,) = set_aside(cluster, broker_id)
    assert "00000000000000000001.log" in cluster.brokers[broker_id].files.list(kept)


def test_a_crash_after_the_replica_has_left_is_continued(cluster: SimulatedCluster) -> None:
    damage(cluster, 2)
    cluster.start(2)
    cluster.run_until(lambda: 2 not in cluster.state("t").isr)
    assert not is_replaced(cluster, 2)
    cluster.kill(2, power=True)
    cluster.start(2)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert values(cluster.log_of(2, "t")) == RECORDS


def test_a_damaged_replica_that_alone_is_in_sync_stays(cluster: SimulatedCluster) -> None:
    cluster.kill(2)
    cluster.kill(3)
    cluster.run_until(lambda: cluster.state("t").isr == (1,))
    damage(cluster, 1)
    for broker_id in (1, 2, 3):
        cluster.start(broker_id)
    cluster.advance(60_000)
    assert not is_replaced(cluster, 1)
    assert cluster.state("t").isr == (1,)
    assert set_aside(cluster, 1) == []
    assert "t-0" in cluster.brokers[1].files.list("")


def test_a_damaged_replica_leaves_although_no_other_replica_is_live(
    cluster: SimulatedCluster,
) -> None:
    cluster.kill(2, ends_session=True)
    cluster.kill(3, ends_session=True)
    damage(cluster, 1)
    assert set(cluster.state("t").isr) == {1, 2, 3}
    cluster.start(1)
    cluster.advance(5 * CHECK_INTERVAL_MS)
    assert set(cluster.state("t").isr) == {2, 3}
    cluster.start(2)
    cluster.start(3)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    assert values(cluster.log_of(1, "t")) == RECORDS


def test_a_damaged_partition_with_one_replica_stays(cluster: SimulatedCluster) -> None:
    cluster.create_topic("alone", replicas=[(1,)], segment_bytes="100")
    for _ in range(2):
        cluster.produce("alone", b"a")
    broker = cluster.brokers[1]
    broker.stop()
    broker.files.remove(SEGMENT.replace("t-0", "alone-0"))
    cluster.start(1)
    cluster.advance(5 * CHECK_INTERVAL_MS)
    assert "partition_not_served" in broker.journal.events("error")
    assert not is_replaced(cluster, 1)
    response = broker.call(fetch_request(("alone", 0, 0), max_wait_ms=0))
    assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
