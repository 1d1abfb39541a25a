"""Requests of administrators to a cluster of one broker: reassignments, elections, directories, quorum, features."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from headrace.core.cluster.records import REGISTRATIONS, RegistrationRecord, encode
from headrace.errors import ErrorCode
from headrace.ports import Put
from headrace.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.fixtures.broker_harness import BrokerHarness, batch, produce_request
from tests.fixtures.metadata_stores import commit
from tests.unit.broker.log_dirs.test_log_dirs import Disk

BROKER = 4


@pytest.fixture
def disks() -> list[Disk]:
    return [Disk("/a"), Disk("/b")]


@pytest.fixture
def harness(disks: list[Disk]) -> BrokerHarness:
    harness = BrokerHarness(files=disks[0], further=disks[1:])
    harness.create_topic("t", partitions=2)
    return harness


def place(harness: BrokerHarness, index: int) -> str:
    """Return the directory of a partition of the topic."""
    results = harness.call(DescribeLogDirsRequest(topics=None), 5).results
    found: str = next(
        directory.log_dir
        for directory in results
        for topic in directory.topics
        if topic.name == "t" and index in {each.partition_index for each in topic.partitions}
    )
    return found


def move(harness: BrokerHarness, path: str, *indexes: int, topic: str = "t") -> list[int]:
    wanted = AlterReplicaLogDirTopic(name=topic, partitions=list(indexes))
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[wanted])])
    (result,) = harness.call(request, 2).results
    return [each.error_code for each in result.partitions]


def fail(harness: BrokerHarness, disk: Disk, index: int) -> None:
    """Fail a disk during a write to a partition."""
    disk.error = errno.EIO
    harness.send(produce_request("t", index, batch(b"lost")), 9)
    while harness.sync():
        pass
    assert harness.broker.services.partitions.find("t", index) is None


def test_a_replica_is_in_the_directory_where_it_is_and_in_no_other(harness: BrokerHarness) -> None:
    here = place(harness, 0)
    there = {"/a": "/b", "/b": "/a"}[here]
    assert move(harness, here, 0) == [ErrorCode.NONE]
    assert move(harness, there, 0) == [ErrorCode.INVALID_REQUEST]
    assert move(harness, "/c", 0, 9) == [ErrorCode.LOG_DIR_NOT_FOUND] * 2
    assert move(harness, here, -1, 2) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert move(harness, here, 0, topic="u") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert place(harness, 0) == here


def test_partitions_of_a_failed_directory_can_be_neither_moved_nor_led(
    harness: BrokerHarness, disks: list[Disk]
) -> None:
    index = next(each for each in (0, 1) if place(harness, each) == "/b")
    fail(harness, disks[1], index)
    assert move(harness, "/b", index) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert move(harness, "/a", index) == [ErrorCode.KAFKA_STORAGE_ERROR]
    for kind, code in (
        (0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ):
        named = [TopicPartitions(topic="t", partitions=[0, 1])]
        answer = harness.call(ElectLeadersRequest(election_type=kind, topic_partitions=named), 2)
        (result,) = answer.replica_election_results
        expected = {index: code, 1 - index: ErrorCode.ELECTION_NOT_NEEDED}
        assert {each.partition_id: each.error_code for each in result.partition_result} == expected
        answer = harness.call(ElectLeadersRequest(election_type=kind, topic_partitions=None), 2)
        (result,) = answer.replica_election_results
        assert [(e.partition_id, e.error_code) for e in result.partition_result] == [(index, code)]


def test_the_quorum_is_this_broker() -> None:
    harness = BrokerHarness(broker_id=7)
    epochs = []
    for _ in range(2):
        partition = DescribeQuorumRequestPartitionData(partition_index=0)
        topic = DescribeQuorumRequestTopicData(
            topic_name="__cluster_metadata", partitions=[partition]
        )
        answer = harness.call(DescribeQuorumRequest(topics=[topic]), 2)
        (found,) = answer.topics[0].partitions
        assert (found.error_code, found.leader_id) == (ErrorCode.NONE, 7)
        assert [voter.replica_id for voter in found.current_voters] == [7]
        ((node,), (listener,)) = answer.nodes, answer.nodes[0].listeners
        assert (node.node_id, listener.host, listener.port) == (7, "127.0.0.1", 9092)
        epochs.append(found.leader_epoch)
        harness.crash()
    assert epochs[0] < epochs[1]


def test_no_registered_broker_can_be_unregistered() -> None:
    harness = BrokerHarness(broker_id=7)
    put = Put(f"{REGISTRATIONS}3", encode(RegistrationRecord(1)))
    commit(harness.metadata, [], [put])
    harness.broker.tick(harness.now_ms)
    for broker_id, code in (
        (7, ErrorCode.INVALID_REQUEST),
        (3, ErrorCode.INVALID_REQUEST),
        (1, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        assert harness.call(UnregisterBrokerRequest(broker_id=broker_id), 0).error_code == code


def told(harness: BrokerHarness) -> tuple[int, int]:
    """Return the level of transaction.version that clients see, and the epoch."""
    answer = harness.call(ApiVersionsRequest(), 4)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return levels.get("transaction.version", 0), answer.finalized_features_epoch


def update(
    harness: BrokerHarness, level: int, kind: int, *, validate_only: bool = False, **other: int
) -> Any:
    updates = {"transaction.version": level} | {
        name.replace("_", "."): each for name, each in other.items()
    }
    request = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=each, upgrade_type=kind)
            for name, each in updates.items()
        ],
        validate_only=validate_only,
    )
    return harness.call(request, 2).error_code


def test_the_level_of_a_feature_is_changed_for_clients_and_over_restarts() -> None:
    harness = BrokerHarness()
    level, epoch = told(harness)
    assert level == 2
    assert update(harness, 1, 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(harness, 1, 2, validate_only=True) == ErrorCode.NONE
    assert told(harness) == (2, epoch)
    assert update(harness, 1, 2) == ErrorCode.NONE
    assert told(harness)[0] == 1
    assert told(harness)[1] > epoch, "clients believe another level only with a higher epoch"
    harness.crash()
    assert told(harness)[0] == 1
    assert update(harness, 0, 3) == ErrorCode.NONE
    assert told(harness)[0] == 0
    assert update(harness, 2, 1) == ErrorCode.NONE
    assert told(harness)[0] == 2


def test_all_features_of_a_request_are_updated_or_none() -> None:
    harness = BrokerHarness()
    assert update(harness, 1, 2, no_such=1) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(harness, 1, 2, group_version=0) == ErrorCode.INVALID_UPDATE_VERSION
    assert told(harness)[0] == 2
    assert update(harness, 1, 2, group_version=1) == ErrorCode.NONE
    assert told(harness)[0] == 1


def test_a_level_that_the_brokers_own_setting_hides_is_refused() -> None:
    harness = BrokerHarness()
    setting = AlterableConfig(name="headrace.transaction.version", value="1")
    resource = AlterConfigsResource(
        resource_type=BROKER,
        resource_name=str(harness.broker.config.broker_id),
        configs=[setting],
    )
    answer = harness.call(AlterConfigsRequest(resources=[resource]), 2)
    assert [each.error_code for each in answer.responses] == [ErrorCode.NONE]
    assert told(harness)[0] == 1
    assert update(harness, 2, 1) == ErrorCode.INVALID_UPDATE_VERSION
