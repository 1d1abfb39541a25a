"""Each partition gets a leader by itself after a power cut of all brokers: the replica with the newest record."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.fixtures.broker_harness import values
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.crash_files import CrashFileSystem

WEAKER = ("os", "interval:1000")
REPLICAS = (1, 2, 3)


def made(durability: str | None, *, synced: Sequence[int] = REPLICAS) -> SimulatedCluster:
    """Return a cluster with a record in a topic that broker 1 leads, which some of the brokers have synced."""
    cluster = SimulatedCluster(3)
    if durability is None:
        cluster.create_topic("t", replicas=[REPLICAS])
    else:
        cluster.create_topic("t", replicas=[REPLICAS], headrace_durability=durability)
    assert cluster.produce("t", b"a", acks=-1).base_offset == 0
    cluster.advance(20)
    for broker_id in synced:
        sync(cluster, broker_id)
    return cluster


def sync(cluster: SimulatedCluster, broker_id: int) -> None:
    log = cluster.replica(broker_id, "t").log
    task = log.start_sync()
    if task is not None:
        task.run()
        log.finish_sync(task)


def power_cut(cluster: SimulatedCluster) -> None:
    for broker_id in REPLICAS:
        cluster.kill(broker_id, power=True, ends_session=True)


def unclean(cluster: SimulatedCluster) -> list[object]:
    """Return the leaders whose election was logged as one that may lose records."""
    return [
        fields["leader"]
        for broker in cluster.brokers.values()
        for _, event, fields in broker.journal.lines
        if event == "unclean_leader_elected"
    ]


def recovered(cluster: SimulatedCluster) -> list[bytes | None]:
    """Return the records when all replicas are in sync."""
    cluster.run_until(lambda: cluster.leader("t") > 0 and cluster.is_in_sync("t"))
    log = cluster.replica(cluster.leader("t"), "t").log
    cluster.run_until(lambda: log.high_watermark == log.log_end_offset)
    return values(cluster.fetch("t", 0).records)


def test_with_the_default_durability_nothing_is_lost_and_the_election_is_clean() -> None:
    cluster = made(None, synced=())
    power_cut(cluster)
    for broker_id in (2, 3, 1):
        cluster.start(broker_id)
    assert recovered(cluster) == [b"a"]
    assert unclean(cluster) == []


@pytest.mark.parametrize("durability", WEAKER)
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_the_replica_with_the_newest_record_leads(durability: str, order: tuple[int, ...]) -> None:
    cluster = made(durability, synced=(2,))
    power_cut(cluster)
    for broker_id in order:
        cluster.start(broker_id)
    assert recovered(cluster) == [b"a"]
    assert unclean(cluster) == [2]
    assert cluster.state("t").last_known == ()
    assert cluster.produce("t", b"b").base_offset == 1


def test_the_partition_waits_for_the_replica_with_the_newest_record() -> None:
    cluster = made("os", synced=(3,))
    power_cut(cluster)
    for broker_id in (3, 1, 2):
        cluster.start(broker_id)
        if broker_id == 3:
            cluster.kill(3, ends_session=True)
    cluster.advance(20_000)
    assert cluster.leader("t") == -1
    cluster.start(3)
    assert recovered(cluster) == [b"a"]


def test_no_leader_is_elected_while_a_replica_of_the_isr_has_not_started() -> None:
    cluster = made("os", synced=(3,))
    power_cut(cluster)
    for broker_id in (1, 2):
        cluster.start(broker_id)
    cluster.advance(20_000)
    assert (cluster.leader("t"), cluster.state("t").isr) == (-1, (3,))
    cluster.start(3)
    assert recovered(cluster) == [b"a"]


def test_with_interval_a_record_that_is_older_than_the_interval_is_not_lost() -> None:
    cluster = made("interval:1000", synced=())
    cluster.advance(1_100)
    cluster.produce("t", b"b", acks=-1)
    power_cut(cluster)
    for broker_id in REPLICAS:
        cluster.start(broker_id)
    assert recovered(cluster) == [b"a"]


def test_a_second_power_cut_before_the_election_changes_nothing() -> None:
    cluster = made("os", synced=(2,))
    power_cut(cluster)
    for broker_id in (1, 2):
        cluster.start(broker_id)
    for broker_id in (1, 2):
        cluster.kill(broker_id, power=True, ends_session=True)
    for broker_id in REPLICAS:
        cluster.start(broker_id)
    assert recovered(cluster) == [b"a"]


def test_a_person_decides_if_the_last_replica_in_sync_has_lost_its_disk() -> None:
    cluster = made("os", synced=())
    cluster.elect("t", 0, 1, isr=[1, 2])
    cluster.kill(3)
    cluster.kill(2, power=True)
    cluster.kill(1, ends_session=True)
    cluster.start(2)
    cluster.brokers[1].files = CrashFileSystem()
    cluster.start(1)
    cluster.start(3)
    cluster.advance(20_000)
    assert (cluster.leader("t"), cluster.state("t").last_known) == (-1, ())


def test_a_replica_that_loses_its_disk_before_the_election_does_not_lead() -> None:
    cluster = made("os", synced=(2,))
    power_cut(cluster)
    cluster.start(2)
    cluster.kill(2, ends_session=True)
    cluster.brokers[2].files = CrashFileSystem()
    for broker_id in (2, 1, 3):
        cluster.start(broker_id)
    assert set(unclean(cluster)) <= {1, 3}
    cluster.run_until(lambda: cluster.is_in_sync("t"))
