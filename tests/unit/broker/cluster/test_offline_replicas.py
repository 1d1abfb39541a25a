"""Replicas in a log directory that fails while the broker runs leave ISR and ELR, so that others lead."""

from __future__ import annotations

import errno

import pytest

from headrace.core.cluster.records import PLACEMENTS, TOPICS, PlacementRecord, TopicRecord, encode
from headrace.ports import LogDirectory, Put
from tests.fixtures.broker_harness import batch, produce_request, values
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.crash_files import CrashFileSystem

COUNT = 31


class _SecondDisk(CrashFileSystem):
    """A disk with a name of its own."""

    def describe(self) -> LogDirectory:
        return LogDirectory("second")


@pytest.fixture
def cluster() -> SimulatedCluster:
    """A cluster whose broker 1 has all partitions of a topic in its second log directory, and leads them."""
    cluster = SimulatedCluster(0)
    cluster.add_broker(1, further=[_SecondDisk()])
    cluster.add_broker(2)
    second = list(cluster.brokers[1].broker.services.log_store.dirs)[1]
    topic_id = cluster.entropy.uuid()
    placement = PlacementRecord({second.directory_id: list(range(COUNT))})
    record = TopicRecord(topic_id.hex(), [*[(1, 2)] * (COUNT - 1), (1,)])
    cluster.commit(
        Put(f"{PLACEMENTS}1/{topic_id.hex()}", encode(placement)), Put(f"{TOPICS}t", encode(record))
    )
    cluster.advance(100)
    assert cluster.replica(1, "t").log_dir is second
    cluster.produce("t", b"a")
    cluster.advance(20)
    return cluster


def fail_disk(cluster: SimulatedCluster) -> None:
    disk = cluster.brokers[1].further[0]
    assert isinstance(disk, CrashFileSystem)
    disk.fault = lambda kind, _path: errno.EIO if kind == "sync" else None
    cluster.brokers[1].send(produce_request("t", 1, batch(b"b"), acks=0))


def test_other_brokers_lead_the_partitions_of_a_failed_directory(cluster: SimulatedCluster) -> None:
    fail_disk(cluster)
    replicated = range(COUNT - 1)
    cluster.run_until(lambda: {cluster.leader("t", index) for index in replicated} == {2})
    assert all(cluster.state("t", index).isr == (2,) for index in replicated)
    cluster.advance(100)
    assert values(cluster.fetch("t", 0).records) == [b"a"]
    assert cluster.leader("t", COUNT - 1) == 1, "the only replica"


def test_replicas_leave_when_the_store_responds_again(cluster: SimulatedCluster) -> None:
    cluster.cut_store(1)
    fail_disk(cluster)
    cluster.advance(3_000)
    assert cluster.leader("t") == 1
    cluster.heal()
    cluster.run_until(lambda: cluster.leader("t") == 2)


def test_the_last_replica_in_sync_stays(cluster: SimulatedCluster) -> None:
    cluster.kill(2, ends_session=True)
    cluster.run_until(lambda: cluster.state("t").isr == (1,))
    fail_disk(cluster)
    cluster.advance(1_000)
    assert (cluster.leader("t"), cluster.state("t").isr) == (1, (1,))


def test_a_follower_in_a_failed_directory_fetches_no_longer(cluster: SimulatedCluster) -> None:
    cluster.elect("t", 0, 2)
    cluster.run_until(lambda: cluster.produce("t", b"b").error_code == 0)
    cluster.advance(1_000)
    disk = cluster.brokers[1].further[0]
    assert isinstance(disk, CrashFileSystem)
    disk.fault = lambda kind, _path: errno.EIO if kind == "append" else None
    cluster.produce("t", b"c")
    cluster.run_until(lambda: cluster.state("t").isr == (2,))
    cluster.advance(10_000)
    events = [event for _, event, _ in cluster.brokers[1].journal.lines]
    assert events.count("replication_failed") == 1
    assert cluster.state("t").isr == (2,)
