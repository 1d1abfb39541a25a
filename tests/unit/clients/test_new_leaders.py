"""Clients use the leaders that responses name with errors (KIP-951), and name topics by id (KIP-516)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.clients.consumer.blocking import Consumer
from headrace.clients.flows.cluster import (
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from headrace.clients.producer.blocking import Producer
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.fetch import FetchRequest, LeaderIdAndEpoch, NodeEndpoint
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.types import TopicPartition
from tests.unit.clients.fake_broker import FakeCluster

T0 = TopicPartition("t", 0)
OPTIONS: dict[str, Any] = {"retry_backoff_ms": 20_000, "retry_backoff_max_ms": 20_000}
"""Backoffs that are longer than the test: nothing may wait for one."""


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(nodes=3, topics={"t": 1}) as made:
        made.versions |= {ApiKey.PRODUCE: 13, ApiKey.FETCH: 17}
        yield made


def nodes(cluster: FakeCluster, kind: type) -> list[int]:
    """Return the nodes that were asked, in order."""
    return [node for node, request in cluster.requests if isinstance(request, kind)]


def test_a_producer_sends_to_the_leader_that_the_response_names(cluster):
    with Producer(cluster.bootstrap, **OPTIONS) as producer:
        producer.send("t", b"a").result(5)
        asked = cluster.count(MetadataRequest)
        cluster.move("t", 0, leader=2)
        producer.send("t", b"b").result(5)
        cluster.move("t", 0, leader=3)
        producer.send("t", b"c").result(5)
        assert cluster.count(MetadataRequest) == asked
    assert nodes(cluster, ProduceRequest) == [1, 1, 2, 2, 3]
    assert [record.value for record in cluster.logs[T0].records()] == [b"a", b"b", b"c"]


def test_a_consumer_fetches_from_the_leader_that_the_response_names(cluster):
    with Producer(cluster.bootstrap) as producer:
        producer.send("t", b"a").result(5)
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest", **OPTIONS) as consumer:
        consumer.assign([T0])
        assert [record.value for record in consumer.poll(5)] == [b"a"]
        asked = cluster.count(MetadataRequest)
        cluster.move("t", 0, leader=3)
        with Producer(cluster.bootstrap) as producer:
            producer.send("t", b"b").result(5)
            asked += cluster.count(MetadataRequest) - asked
        assert [record.value for record in consumer.poll(5)] == [b"b"]
        assert cluster.count(MetadataRequest) == asked
    assert nodes(cluster, FetchRequest)[-1] == 3


@pytest.mark.parametrize(("newest", "ids"), [(12, False), (13, True), (17, True)])
def test_a_consumer_names_topics_by_id_if_the_broker_knows_ids(cluster, newest, ids):
    cluster.versions[ApiKey.FETCH] = newest
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        consumer.poll(0.05)
        (topic,) = next(
            request for _, request in cluster.requests if isinstance(request, FetchRequest)
        ).topics
    expected = ("", cluster.topic_id("t")) if ids else ("t", bytes(16))
    assert (topic.topic, bytes(topic.topic_id)) == expected


def test_clients_of_a_broker_without_topic_ids_use_names(cluster):
    cluster.topic_ids["t"] = bytes(16)
    with (
        Producer(cluster.bootstrap) as producer,
        Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        producer.send("t", b"a").result(5)
        consumer.assign([T0])
        assert [record.value for record in consumer.poll(5)] == [b"a"]
    named = {
        topic.topic
        for _, r in cluster.requests
        if isinstance(r, FetchRequest)
        for topic in r.topics
    }
    named |= {
        topic.name
        for _, r in cluster.requests
        if isinstance(r, ProduceRequest)
        for topic in r.topic_data
    }
    assert named == {"t"}


def test_a_consumer_begins_anew_in_a_topic_that_was_created_again(cluster):
    with (
        Producer(cluster.bootstrap) as producer,
        Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        for _ in range(3):
            producer.send("t", b"old").result(5)
        consumer.assign([T0])
        taken: list[object] = []
        while len(taken) < 3:
            taken += [record.value for record in consumer.poll(5)]
        with cluster.lock:
            log = cluster.logs[T0] = type(cluster.logs[T0])()
            cluster.topic_ids["t"] = b"n" * 16
        with Producer(cluster.bootstrap) as other:
            for number in range(4):
                other.send("t", b"new %d" % number).result(5)
        while len(taken) < 7:
            taken += [record.value for record in consumer.poll(5)]
        producer.send("t", b"last").result(5)
    assert taken[3:] == [b"new 0", b"new 1", b"new 2", b"new 3"], "none is skipped"
    assert log.end_offset == 5, "the producer has learnt the new id"


# The metadata

ENDPOINT = NodeEndpoint(node_id=2, host="two", port=9092, rack="r")


def known(leader: int = 1, epoch: int = 5) -> ClusterMetadata:
    partition = PartitionMetadata(0, leader, epoch, (1, 2), (1, 2))
    return ClusterMetadata(
        brokers={1: BrokerAddress(1, "one", 9092)},
        topics={"t": TopicMetadata("t", partitions={0: partition})},
    )


def learns(
    metadata: ClusterMetadata, leader: int, epoch: int, *endpoints: NodeEndpoint, node: int = 1
) -> bool:
    told = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return metadata.learn_leader(T0, told, endpoints, node)


def test_a_newer_leader_is_stored_with_its_address():
    metadata = known()
    assert learns(metadata, 2, 6, ENDPOINT)
    assert (metadata.leader(T0), metadata.leader_epoch(T0)) == (2, 6)
    assert metadata.brokers[2] == BrokerAddress(2, "two", 9092, "r")


@pytest.mark.parametrize(("leader", "epoch"), [(2, 4), (2, 5), (1, 5), (-1, 7), (3, 6)])
def test_an_older_leader_or_one_without_an_address_is_ignored(leader, epoch):
    metadata = known()
    assert not learns(metadata, leader, epoch, ENDPOINT)
    assert (metadata.leader(T0), metadata.leader_epoch(T0)) == (1, 5)


def test_the_response_to_a_second_request_in_flight_names_the_same_leader():
    metadata = known()
    assert learns(metadata, 2, 6, ENDPOINT)
    assert learns(metadata, 2, 6, ENDPOINT)
    assert not learns(metadata, 2, 6, ENDPOINT, node=2), (
        "a broker that names itself cannot be asked for ever"
    )


def test_a_leader_of_an_unknown_partition_is_ignored():
    metadata = known()
    told = LeaderIdAndEpoch(leader_id=2, leader_epoch=6)
    assert not metadata.learn_leader(TopicPartition("u", 0), told, [ENDPOINT], 1)
    assert not metadata.learn_leader(T0, None, [ENDPOINT], 1)
