"""A broker serves the partitions that lie on it, and refuses the others by their state."""

from __future__ import annotations

import errno

import pytest

from headrace.errors import ApiError, ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.broker_harness import BrokerHarness, values
from tests.fixtures.live_brokers import know_each_other


@pytest.fixture
def brokers() -> tuple[BrokerHarness, BrokerHarness]:
    """Two brokers on one metadata store. The topic "one" lies on broker 1, the topic "two" on broker 2."""
    store = MemoryMetadataStore()
    first = BrokerHarness(metadata=store, broker_id=1)
    first.create_topic("one", partitions=2)
    second = BrokerHarness(metadata=store, broker_id=2)
    second.create_topic("two", partitions=2)
    first.restart()
    return first, second


def refusal(harness: BrokerHarness, name: str, index: int) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        harness.broker.services.partitions.require(name, index)
    assert harness.broker.services.partitions.find(name, index) is None
    return raised.value.code


@pytest.mark.parametrize(("name", "index"), [("none", 0), ("one", 2), ("one", -1), ("two", 2)])
def test_a_partition_that_the_cluster_does_not_have_is_unknown(brokers, name, index):
    assert refusal(brokers[0], name, index) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_each_broker_serves_the_partitions_that_lie_on_it(brokers):
    for harness, name in zip(brokers, ("one", "two"), strict=True):
        assert harness.produce(name, b"a", partition=1).error_code == ErrorCode.NONE
        assert values(harness.fetch(name, 0, partition=1).records) == [b"a"]


def test_a_partition_on_another_broker_is_refused_as_not_led_here(brokers):
    for harness, name in zip(brokers, ("two", "one"), strict=True):
        assert refusal(harness, name, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        for part in (harness.produce(name, b"a"), harness.fetch(name, 0)):
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_broker_creates_no_files_for_partitions_on_another_broker(brokers):
    first, second = brokers
    second.produce("two", b"a")
    second.sync()
    first.restart()
    assert not [name for name in first.files.list("") if name.startswith("two-")]


def test_metadata_describes_the_leaders_of_partitions_on_other_brokers(brokers):
    second = brokers[1]
    know_each_other(*brokers)
    for harness in brokers:
        described = {
            topic.name: [
                (each.error_code, each.leader_id, each.replica_nodes) for each in topic.partitions
            ]
            for topic in harness.call(MetadataRequest(topics=None)).topics
        }
        assert described == {"one": [(0, 1, [1])] * 2, "two": [(0, 2, [2])] * 2}
    assert second.broker.services.partitions.require("two", 0).leader_epoch == 0


def test_a_partition_in_a_failed_directory_is_refused_with_a_storage_error():
    harness = BrokerHarness(further=[MemoryFileSystem()])
    harness.create_topic("t", partitions=2)
    partitions = harness.broker.services.partitions
    failed = partitions.require("t", 1).log_dir
    assert failed is not harness.broker.services.log_store.dirs.first
    harness.broker.services.log_store.fail(failed, OSError(errno.EIO, "Input/output error"))
    assert refusal(harness, "t", 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(harness, "t", 2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partitions.require("t", 0).high_watermark == 0
