"""Two brokers with one metadata store: each knows the topics that the other has created or changed."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.live_brokers import know_each_other
from tests.fixtures.metadata_stores import stored
from tests.unit.broker.metadata.test_two_brokers import Cluster, configure, described

TOPIC = 2


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def topics(harness: BrokerHarness) -> dict[str, Any]:
    return {topic.name: topic for topic in harness.call(MetadataRequest(topics=None)).topics}


def delete(harness: BrokerHarness, name: str) -> ErrorCode:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name, topic_id=bytes(16))])
    pending = harness.send(request)
    while not pending.done:
        assert harness.step()
    return ErrorCode(pending.response.responses[0].error_code)


def grow(harness: BrokerHarness, name: str, count: int) -> ErrorCode:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    pending = harness.send(CreatePartitionsRequest(topics=[topic]))
    while not pending.done:
        assert harness.step()
    return ErrorCode(pending.response.results[0].error_code)


def test_a_new_topic_is_known_to_the_other_broker_which_names_its_leader(cluster: Cluster) -> None:
    one, two = cluster.one, cluster.two
    know_each_other(one, two)
    created = one.create_topic("t", partitions=2)
    assert "t" not in topics(two)
    cluster.tick()
    for harness in (one, two):
        topic = topics(harness)["t"]
        assert topic.topic_id == created.topic_id
        assert [
            (each.error_code, each.leader_id, each.leader_epoch, each.replica_nodes, each.isr_nodes)
            for each in topic.partitions
        ] == [(0, 1, 0, [1], [1]), (0, 2, 0, [2], [2])]
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
        described_topic = harness.call(request).topics[0]
        assert [each.leader_id for each in described_topic.partitions] == [1, 2]


def test_only_the_leader_accepts_records_and_has_files(cluster: Cluster) -> None:
    one, two = cluster.one, cluster.two
    one.create_topic("t")
    cluster.tick()
    assert one.produce("t", b"a").error_code == ErrorCode.NONE
    assert two.produce("t", b"a").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert two.fetch("t", 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "t-0" in one.files.list("")
    assert "t-0" not in two.files.list("")


def test_a_registration_of_the_leader_begins_a_leader_epoch_on_every_broker(
    cluster: Cluster,
) -> None:
    cluster.one.create_topic("t")
    cluster.one.restart()
    cluster.tick()
    for harness in (cluster.one, cluster.two):
        assert topics(harness)["t"].partitions[0].leader_epoch == 1


def test_added_partitions_are_known_to_the_other_broker(cluster: Cluster) -> None:
    cluster.one.create_topic("t")
    cluster.tick()
    know_each_other(cluster.one, cluster.two)
    assert grow(cluster.two, "t", 3) == ErrorCode.NONE
    cluster.tick()
    for harness in (cluster.one, cluster.two):
        assert [each.leader_id for each in topics(harness)["t"].partitions] == [1, 2, 1]
    assert cluster.two.produce("t", b"a", partition=1).error_code == ErrorCode.NONE
    assert (
        cluster.one.produce("t", b"a", partition=1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def test_the_settings_of_a_topic_are_in_force_on_the_leader_if_the_other_broker_changes_them(
    cluster: Cluster,
) -> None:
    one, two = cluster.one, cluster.two
    one.create_topic("t")
    cluster.tick()
    configure(two, TOPIC, "t", "max.message.bytes", "100")
    cluster.tick()
    assert described(one, TOPIC, "t", "max.message.bytes") == "100"
    assert one.produce("t", bytes(500)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    configure(one, TOPIC, "t", "max.message.bytes", None)
    cluster.tick()
    assert described(two, TOPIC, "t", "max.message.bytes") != "100"
    assert one.produce("t", bytes(500)).error_code == ErrorCode.NONE


def test_the_broker_with_the_replicas_removes_the_files_of_a_deleted_topic(
    cluster: Cluster,
) -> None:
    one, two = cluster.one, cluster.two
    one.create_topic("t")
    one.produce("t", b"a")
    cluster.tick()
    assert delete(two, "t") == ErrorCode.NONE
    assert stored(cluster.store, "deleted/"), "broker 1 still has files"
    cluster.tick()
    assert topics(one) == topics(two) == {}
    assert "t-0" not in one.files.list("")
    assert not stored(cluster.store, "deleted/")


def test_clients_of_two_brokers_ask_for_one_new_topic_and_the_slower_one_retries(
    cluster: Cluster,
) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True
    )
    assert cluster.one.call(request).topics[0].error_code == ErrorCode.NONE
    slower = cluster.two.call(request).topics[0]
    assert slower.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.tick()
    assert cluster.two.call(request).topics[0].error_code == ErrorCode.NONE


def test_a_topic_that_the_other_broker_has_just_created_cannot_be_created(
    cluster: Cluster,
) -> None:
    cluster.one.create_topic("t")
    for _ in range(2):
        with pytest.raises(AssertionError, match="Topic 't' already exists"):
            cluster.two.create_topic("t")
        cluster.tick()
    assert cluster.one.produce("t", b"a").error_code == ErrorCode.NONE


def test_a_topic_that_was_deleted_and_created_again_is_another_topic(cluster: Cluster) -> None:
    one, two = cluster.one, cluster.two
    one.create_topic("t", partitions=3)
    cluster.tick()
    assert delete(one, "t") == ErrorCode.NONE
    created = one.create_topic("t", partitions=2)
    cluster.tick()
    assert topics(two)["t"].topic_id == created.topic_id
    assert len(topics(two)["t"].partitions) == 2


def test_changes_of_a_large_topic_are_done_in_order_by_the_other_broker(cluster: Cluster) -> None:
    one, two = cluster.one, cluster.two
    one.create_topic("t", partitions=2_000)
    assert grow(one, "t", 3_000) == ErrorCode.NONE
    assert delete(one, "t") == ErrorCode.NONE
    one.create_topic("t", partitions=1_500)
    cluster.tick()
    while two.step():
        pass
    assert len(topics(two)["t"].partitions) == 1_500
    assert topics(two)["t"].topic_id == topics(one)["t"].topic_id
