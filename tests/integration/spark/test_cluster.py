"""The requests of the source to a real cluster, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace.clients.blocking import BlockingClient, OffsetAndMetadata
from headrace.clients.consumer.blocking import Consumer
from headrace.errors import ConfigError
from headrace.records.builder import build_batch
from headrace.spark.options.reader import ClientOptions
from headrace.spark.source.cluster_client import UNKNOWN_BYTES, ClusterClient
from headrace.spark.source.offsets import LogEnd
from headrace.spark.source.progress import GroupProgress
from headrace.types import TopicPartition
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics, produce_values


@pytest.fixture
def cluster(server: Target) -> Iterator[ClusterClient]:
    connected = ClusterClient(ClientOptions(server.bootstrap))
    yield connected
    connected.close()


def test_the_client_returns_end_offsets_and_offsets_by_time(
    topics: Topics, client: BlockingClient, cluster: ClusterClient
) -> None:
    topic = topics.create(partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce_values(client, topic, 0, range(10))

    ends = cluster.ends([first, second])
    times = cluster.offsets_at({first: 1_700_000_000_004, second: 5})

    assert {each: end.offset for each, end in ends.items()} == {first: 10, second: 0}
    assert all(end.leader_epoch >= 0 for end in ends.values())
    assert times == {first: 4, second: -1}
    assert (cluster.ends([]), cluster.offsets_at({}), cluster.epoch_ends({})) == ({}, {}, {})


def test_the_current_epoch_ends_where_the_log_does(
    topics: Topics, client: BlockingClient, cluster: ClusterClient
) -> None:
    topic = topics.create()
    each = TopicPartition(topic, 0)
    produce_values(client, topic, 0, range(10))
    (end,) = cluster.ends([each]).values()

    assert end == LogEnd(10, end.leader_epoch)
    assert cluster.epoch_ends({each: end.leader_epoch}) == {each: 10}


def test_sizes_are_measured_where_reading_goes_on(
    topics: Topics, client: BlockingClient, cluster: ClusterClient
) -> None:
    topic = topics.create(partitions=3)
    for partition, size in ((0, 100), (0, 5000), (1, 50_000)):
        records = [(None, b"x" * size, (), 0)] * 10
        client.produce(TopicPartition(topic, partition), build_batch(records))
    small, large, empty = (TopicPartition(topic, number) for number in range(3))

    at_first = cluster.bytes_per_offset({small: 0, large: 0, empty: 0})
    later = cluster.bytes_per_offset({small: 10})

    assert at_first[small] == pytest.approx(2550, rel=0.1), "both batches fit into a sample"
    assert at_first[large] == pytest.approx(50_000, rel=0.1), (
        "a batch larger than a sample is measured, too"
    )
    assert at_first[empty] == pytest.approx((at_first[small] + at_first[large]) / 2)
    assert later[small] == pytest.approx(5000, rel=0.1)
    assert cluster.bytes_per_offset({empty: 0}) == {empty: UNKNOWN_BYTES}


def test_progress_is_committed_without_being_a_member(
    topics: Topics, client: BlockingClient, cluster: ClusterClient
) -> None:
    each = TopicPartition(topics.create(), 0)
    group = f"group-of-{each.topic}"

    cluster.commit(group, {each: OffsetAndMetadata(7)})

    assert client.committed_offsets(group)[each].offset == 7


def test_a_group_that_has_members_is_not_committed_to(
    server: Target, topics: Topics, cluster: ClusterClient
) -> None:
    each = TopicPartition(topics.create(), 0)
    group = f"group-of-{each.topic}"
    with Consumer(server.bootstrap, group=group) as member:
        member.subscribe([each.topic])
        assert member.assignment(timeout_s=30) == [each]

        progress = GroupProgress(cluster, group, time.monotonic)
        with pytest.raises(ConfigError, match=f"option group: offsets cannot .* to {group}"):
            progress.reached({each: 0}, {})
