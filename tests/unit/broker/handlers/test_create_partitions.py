"""CreatePartitions: the growth of topics."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.fixtures.broker_harness import BrokerHarness, values


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness(max_partitions=20, max_partitions_per_topic=12)
    made.create_topic("t", partitions=2)
    made.create_topic("u")
    return made


def wanted(name: str, count: int, *replicas: list[int], assigned: bool = False):
    assignments = [CreatePartitionsAssignment(broker_ids=ids) for ids in replicas]
    return CreatePartitionsTopic(
        name=name, count=count, assignments=assignments if replicas or assigned else None
    )


def grow(harness, *topics, version=3, validate_only=False):
    request = CreatePartitionsRequest(
        topics=list(topics), timeout_ms=1000, validate_only=validate_only
    )
    results = harness.call(request, version).results
    return [(result.name, ErrorCode(result.error_code)) for result in results]


def partitions(harness, name="t") -> list[int]:
    response = harness.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
    (topic,) = response.topics
    assert all(p.error_code == 0 and p.leader_id == 1 for p in topic.partitions)
    return [partition.partition_index for partition in topic.partitions]


@pytest.mark.parametrize("version", range(4))
def test_new_partitions_take_records_and_the_old_ones_keep_theirs(harness, version):
    harness.produce("t", b"old", partition=1)
    assert grow(harness, wanted("t", 5), version=version) == [("t", ErrorCode.NONE)]
    assert partitions(harness) == [0, 1, 2, 3, 4]
    assert harness.produce("t", b"new", partition=4).base_offset == 0
    assert values(harness.fetch("t", 0, partition=4).records) == [b"new"]
    assert values(harness.fetch("t", 0, partition=1).records) == [b"old"]


@pytest.mark.parametrize("again", ["restart", "crash"])
def test_new_partitions_survive_a_restart_or_a_crash(harness, again):
    topic_id = harness.broker.services.topics.require("t").topic_id
    grow(harness, wanted("t", 4))
    getattr(harness, again)()
    assert partitions(harness) == [0, 1, 2, 3]
    assert harness.broker.services.topics.require("t").topic_id == topic_id
    grow(harness, wanted("t", 6))
    getattr(harness, again)()
    assert partitions(harness) == [0, 1, 2, 3, 4, 5]


def test_validate_only_changes_nothing(harness):
    assert grow(harness, wanted("t", 3), validate_only=True) == [("t", ErrorCode.NONE)]
    assert grow(harness, wanted("t", 2), validate_only=True) == [
        ("t", ErrorCode.INVALID_PARTITIONS)
    ]
    assert partitions(harness) == [0, 1]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (wanted("t", 2), ErrorCode.INVALID_PARTITIONS),
        (wanted("t", 1), ErrorCode.INVALID_PARTITIONS),
        (wanted("t", 0), ErrorCode.INVALID_PARTITIONS),
        (wanted("t", -1), ErrorCode.INVALID_PARTITIONS),
        (wanted("t", 13), ErrorCode.INVALID_PARTITIONS),
        (wanted("none", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (wanted("t", 4, [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", 4, [1], [1], [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", 4, [1], [2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", 4, [1], []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", 4, [1], [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", 4, assigned=True), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_topic_that_cannot_grow_has_an_error(harness, topic, error, validate_only):
    assert grow(harness, topic, validate_only=validate_only) == [(topic.name, error)]
    assert partitions(harness) == [0, 1]


def test_an_assignment_to_this_broker_is_accepted(harness):
    assert grow(harness, wanted("t", 4, [1], [1])) == [("t", ErrorCode.NONE)]
    assert partitions(harness) == [0, 1, 2, 3]


def test_topics_are_grown_or_refused_each_for_itself(harness):
    assert grow(harness, wanted("t", 1), wanted("u", 2)) == [
        ("t", ErrorCode.INVALID_PARTITIONS),
        ("u", ErrorCode.NONE),
    ]
    assert partitions(harness, "u") == [0, 1]


def test_a_topic_that_is_named_twice_is_refused_once(harness):
    assert grow(harness, wanted("t", 3), wanted("u", 2), wanted("t", 4)) == [
        ("t", ErrorCode.INVALID_REQUEST),
        ("u", ErrorCode.NONE),
    ]
    assert partitions(harness) == [0, 1]


def test_the_brokers_partition_limit_counts_only_added_partitions(harness):
    harness.create_topic("v", partitions=10)  # 13 now
    assert grow(harness, wanted("t", 10)) == [("t", ErrorCode.POLICY_VIOLATION)]
    assert grow(harness, wanted("t", 9)) == [("t", ErrorCode.NONE)]


def test_the_topic_of_offsets_cannot_be_grown():
    harness = BrokerHarness(offsets_topic_num_partitions=2)
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    assert grow(harness, wanted("__consumer_offsets", 4)) == [
        ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION)
    ]


def test_a_recreated_topic_does_not_get_the_partitions_of_the_deleted_one(harness):
    grow(harness, wanted("t", 4))
    harness.delete_topic("t")
    harness.create_topic("t", partitions=1)
    assert partitions(harness) == [0]
    harness.restart()
    assert partitions(harness) == [0]
