"""Replicas that another broker has placed on a broker with several log directories are spread over them."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.broker.log_dirs.log_dirs import LogDirs
from headrace.core.cluster.records import PLACEMENTS, PlacementRecord, decode
from headrace.errors import ConfigError, ErrorCode
from headrace.metadata_stores.sessions import Fault
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.cluster import SimulatedCluster


@pytest.fixture
def cluster() -> SimulatedCluster:
    """Return a broker with one log directory, and broker 2 with two."""
    made = SimulatedCluster(1, in_memory=True)
    made.add_broker(2, further=[MemoryFileSystem()])
    return made


def spread(cluster: SimulatedCluster, count: int, topic: str = "t") -> list[int]:
    """Return how many partitions of a topic each log directory of broker 2 has."""
    dirs: Counter[str] = Counter()
    for index in range(count):
        dirs[cluster.replica(2, topic, index).log_dir.directory_id] += 1
    return sorted(dirs.values())


def is_served(cluster: SimulatedCluster, index: int) -> bool:
    return cluster.brokers[2].broker.services.partitions.find("t", index) is not None


def placements(cluster: SimulatedCluster) -> list[PlacementRecord]:
    return [
        decode(each, PlacementRecord)
        for each in cluster.content.entries()
        if each.key.startswith(f"{PLACEMENTS}2/")
    ]


def test_replicas_of_a_new_topic_are_in_all_directories(cluster: SimulatedCluster) -> None:
    cluster.create_topic("t", replicas=[(2, 1)] * 4 + [(1,)])
    assert spread(cluster, 4) == [2, 2]
    (placement,) = placements(cluster)
    assert sorted(map(len, placement.directories.values())) == [2, 2]


def test_replicas_are_in_the_same_directories_after_a_restart(cluster: SimulatedCluster) -> None:
    cluster.create_topic("t", replicas=[(2, 1)] * 4)
    for index in range(4):
        assert cluster.produce("t", b"a", partition=index).error_code == ErrorCode.NONE
    before = [cluster.replica(2, "t", index).log_dir.directory_id for index in range(4)]
    cluster.brokers[2].restart()
    after = [cluster.replica(2, "t", index).log_dir.directory_id for index in range(4)]
    assert after == before
    assert [cluster.replica(2, "t", index).log.log_end_offset for index in range(4)] == [1] * 4


def test_added_replicas_go_where_the_fewest_are(cluster: SimulatedCluster) -> None:
    cluster.create_topic("t", replicas=[(2, 1)])
    topic = CreatePartitionsTopic(name="t", count=4, assignments=None)
    cluster.run_until(lambda: len(cluster.brokers[1].broker.services.membership.live) == 2)
    response = cluster.brokers[1].call(CreatePartitionsRequest(topics=[topic]))
    assert response.results[0].error_code == ErrorCode.NONE
    cluster.run_until(lambda: is_served(cluster, 3))
    assert spread(cluster, 4) == [2, 2]


def test_a_deleted_topic_leaves_no_placement(cluster: SimulatedCluster) -> None:
    cluster.create_topic("t", replicas=[(2, 1)] * 2)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t", topic_id=bytes(16))])
    response = cluster.brokers[1].call(request)
    assert response.responses[0].error_code == ErrorCode.NONE
    cluster.run_until(lambda: not placements(cluster))


@pytest.mark.parametrize(
    "fault", ["unavailable", "unknown and void", "unknown and late", "unknown and applied"]
)
def test_no_replica_is_served_before_its_directory_is_stored(
    cluster: SimulatedCluster, fault: Fault
) -> None:
    """Otherwise a restart would look for the log in another directory."""
    broker = cluster.brokers[2]
    broker.metadata.faults = [fault] * 6
    cluster.create_topic("t", replicas=[(2, 1)] * 2)
    assert spread(cluster, 2) == [1, 1]
    (placement,) = placements(cluster)
    chosen = [cluster.replica(2, "t", index).log_dir.directory_id for index in (0, 1)]
    assert placement.directory_ids(2) == chosen
    is_settled = fault == "unknown and applied"  # by the image, before the request times out
    assert ("topic_not_placed" in broker.journal.events("warning")) is not is_settled


def test_a_storage_that_cannot_be_used_now_is_chosen_all_the_same() -> None:
    def refuse(name: str, _directory_id: str) -> None:
        raise ConfigError(f"{name} cannot be used")

    broker = SimulatedCluster(1, in_memory=True).brokers[1].broker
    first = broker.services.log_store.dirs.first
    dirs = LogDirs([("memory", first)], {}, refuse)
    assert dirs.place_replicas([True, False], is_internal=False, storage="s") == ["storage:s", ""]
