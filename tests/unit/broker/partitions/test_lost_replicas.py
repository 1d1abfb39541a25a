"""A replica whose log directory the broker no longer has is placed anew and fetched, while another one is in sync."""

from __future__ import annotations

import pytest

from headrace.broker.log_dirs.log_dirs import UnusableDirectory
from headrace.broker.partitions.lost_replicas import CHECK_INTERVAL_MS
from headrace.core.cluster.records import (
    PLACEMENTS,
    TOPICS,
    PlacementRecord,
    TopicRecord,
    decode,
    encode,
)
from headrace.errors import ErrorCode
from headrace.ports import LogDirectory, Put
from tests.fixtures.broker_harness import fetch_request, values
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.cluster_broker import ClusterBroker
from tests.fixtures.crash_files import CrashFileSystem, PowerCut


class _Disk(CrashFileSystem):
    """A disk with a name of its own."""

    name = "second"

    def describe(self) -> LogDirectory:
        return LogDirectory(self.name)


class _CutDisk(_Disk):
    """A disk whose first use is interrupted by a power cut."""

    is_cut = True

    def describe(self) -> LogDirectory:
        if self.is_cut:
            self.is_cut = False
            raise PowerCut
        return super().describe()


class _OtherDisk(_Disk):
    """A disk in the place of the second one, under another name."""

    name = "third"


@pytest.fixture
def cluster() -> SimulatedCluster:
    """A cluster whose broker 2 has replicas of two topics in each of its two directories."""
    cluster = SimulatedCluster(1)
    cluster.add_broker(2, further=[_Disk()])
    cluster.create_topic("t", replicas=[(1, 2)] * 4)
    cluster.create_topic("alone", replicas=[(2,)] * 2)
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    for index in range(4):
        assert cluster.produce("t", b"%d" % index, partition=index).error_code == ErrorCode.NONE
    cluster.run_until(lambda: cluster.is_in_sync("t"))
    return cluster


def directories(cluster: SimulatedCluster) -> list[str]:
    """Return the stored directory of each replica of the topic on broker 2."""
    topic_id = cluster.brokers[2].broker.services.topics.require("t").topic_id
    entry = cluster.content.get(f"{PLACEMENTS}2/{topic_id.hex()}")
    return [""] * 4 if entry is None else decode(entry, PlacementRecord).directory_ids(4)


def own_directories(broker: ClusterBroker) -> set[str]:
    return {each.directory_id for each in broker.broker.services.log_store.dirs}


def unserved(cluster: SimulatedCluster, topic: str = "t", count: int = 4) -> list[int]:
    find = cluster.brokers[2].broker.services.partitions.find
    return [index for index in range(count) if find(topic, index) is None]


def all_records(cluster: SimulatedCluster) -> list[bytes | None]:
    return [value for index in range(4) for value in values(cluster.log_of(2, "t", index))]


def is_in_sync(cluster: SimulatedCluster) -> bool:
    return not unserved(cluster) and cluster.is_in_sync("t")


RECORDS = [b"0", b"1", b"2", b"3"]


def test_replicas_of_a_replaced_second_directory_are_fetched_anew(
    cluster: SimulatedCluster,
) -> None:
    broker = cluster.brokers[2]
    before = directories(cluster)
    cluster.kill(2, ends_session=True)
    broker.further = [_OtherDisk()]
    cluster.start(2)
    assert len(unserved(cluster)) == 2
    assert {cluster.state("t", index).isr for index in unserved(cluster)} == {(1,)}
    cluster.run_until(lambda: is_in_sync(cluster))
    assert all_records(cluster) == RECORDS
    assert set(directories(cluster)) <= own_directories(broker)
    assert sum(old == new for old, new in zip(before, directories(cluster), strict=True)) == 2
    assert len(unserved(cluster, "alone", 2)) == 1, "the only replica: its records are lost"
    placed = directories(cluster)
    broker.restart()
    cluster.run_until(lambda: is_in_sync(cluster))
    assert (directories(cluster), all_records(cluster)) == (placed, RECORDS)


def test_replicas_of_a_removed_directory_are_fetched_into_the_only_other_one(
    cluster: SimulatedCluster,
) -> None:
    """Afterwards, an empty directory may have the name of the removed one."""
    broker = cluster.brokers[2]
    broker.stop()
    broker.further = []
    cluster.start(2)
    cluster.run_until(lambda: is_in_sync(cluster))
    assert all_records(cluster) == RECORDS
    broker.restart()
    assert unserved(cluster) == []


@pytest.mark.parametrize("power", [False, True])
def test_all_replicas_of_a_wiped_broker_are_fetched_anew(
    cluster: SimulatedCluster, *, power: bool
) -> None:
    broker = cluster.brokers[2]
    cluster.kill(2, power=power, ends_session=True)
    broker.files, broker.further = CrashFileSystem(), [_Disk()]
    cluster.start(2)
    assert all(cluster.state("t", index).isr == (1,) for index in range(4))
    cluster.run_until(lambda: is_in_sync(cluster))
    assert all_records(cluster) == RECORDS
    assert len(own_directories(broker)) == 2, "also the second directory is new"
    assert set(directories(cluster)) <= own_directories(broker)


def test_a_power_cut_during_the_start_of_a_wiped_broker_is_continued(
    cluster: SimulatedCluster,
) -> None:
    broker = cluster.brokers[2]
    cluster.kill(2, ends_session=True)
    broker.files, broker.further = CrashFileSystem(), [_CutDisk()]
    cluster.start(2)
    assert not broker.is_running
    assert "meta.properties" in broker.files.list("")
    cluster.start(2)
    cluster.run_until(lambda: is_in_sync(cluster))
    assert len(own_directories(broker)) == 2
    assert all_records(cluster) == RECORDS


def test_a_crash_after_the_lost_replicas_have_left_is_continued(cluster: SimulatedCluster) -> None:
    broker = cluster.brokers[2]
    before = directories(cluster)
    cluster.kill(2, ends_session=True)
    broker.further = [_OtherDisk()]
    cluster.start(2)
    assert directories(cluster) == before
    cluster.kill(2, power=True)
    cluster.start(2)
    cluster.run_until(lambda: is_in_sync(cluster))
    assert all_records(cluster) == RECORDS


@pytest.mark.parametrize("is_empty", [False, True])
def test_replicas_of_a_missing_directory_keep_their_place(
    cluster: SimulatedCluster, *, is_empty: bool
) -> None:
    """An empty directory of the same name may be a disk that is not mounted."""
    broker = cluster.brokers[2]
    before, disk = directories(cluster), broker.further[0]
    broker.stop()
    broker.further = [_Disk() if is_empty else UnusableDirectory("second", OSError("no disk"))]
    cluster.start(2)
    cluster.advance(5 * CHECK_INTERVAL_MS)
    assert len(unserved(cluster)) == 2
    assert directories(cluster) == before
    broker.stop()
    broker.further = [disk]
    cluster.start(2)
    cluster.run_until(lambda: is_in_sync(cluster))
    assert directories(cluster) == before


def test_a_lost_replica_that_alone_is_in_sync_stays(cluster: SimulatedCluster) -> None:
    broker = cluster.brokers[2]
    cluster.kill(1, ends_session=True)
    cluster.run_until(lambda: all(cluster.state("t", i).isr == (2,) for i in range(4)))
    before, disk = directories(cluster), broker.further[0]
    broker.stop()
    broker.further = [_OtherDisk()]
    cluster.start(2)
    cluster.start(1)
    cluster.advance(5 * CHECK_INTERVAL_MS)
    assert directories(cluster) == before
    assert broker.journal.events("error").count("lost_replica_stays") == 2
    lost = unserved(cluster)
    response = broker.call(fetch_request(("t", lost[0], 0), max_wait_ms=0))
    assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.stop()
    broker.further = [disk]
    cluster.start(2)
    cluster.run_until(lambda: is_in_sync(cluster))
    assert all_records(cluster) == RECORDS


def test_a_directory_that_cannot_be_stored_is_chosen_again(cluster: SimulatedCluster) -> None:
    broker = cluster.brokers[2]
    broker.stop()
    broker.further = [_OtherDisk()]
    cluster.start(2)
    cluster.cut_store(2)
    cluster.advance(3 * CHECK_INTERVAL_MS)
    assert len(unserved(cluster)) == 2, "the next start would look for the logs elsewhere"
    cluster.heal()
    cluster.run_until(lambda: is_in_sync(cluster))
    assert all_records(cluster) == RECORDS


def test_partitions_that_are_added_meanwhile_are_opened(cluster: SimulatedCluster) -> None:
    broker = cluster.brokers[2]
    topic_id = broker.broker.services.topics.require("t").topic_id
    cluster.kill(2, ends_session=True)
    broker.further = [_OtherDisk()]
    cluster.start(2)
    lost = unserved(cluster)
    changing = broker.broker.services.topics.changing
    cluster.run_until(lambda: "t" in changing)
    record = TopicRecord(topic_id.hex(), [(1, 2)] * 5)
    cluster.commit(Put(f"{TOPICS}t", encode(record)))
    cluster.run_until(lambda: not unserved(cluster, count=5) and cluster.is_in_sync("t"))
    assert len(values(cluster.log_of(2, "t", lost[0]))) == 1
