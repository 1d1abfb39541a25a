"""The requests with which the Spark sink writes exactly once, without Spark: to Headrace, or to Kafka with --target."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

import headrace
from headrace.clients.producer.many import Rows
from headrace.errors import HeadraceError
from headrace.spark.options.sink import SinkOptions, WriteId, sink_options
from headrace.spark.sink.cluster import Cluster, check_cluster, open_cluster
from headrace.spark.sink.exactly_once import (
    PartitionWrite,
    RowBatch,
    abort_batch,
    commit_batch,
    write_partition,
)
from tests.fixtures.targets import Target

PARTITIONS = 3
"""The number of Spark partitions. The topics have fewer partitions."""


@pytest.fixture
def options(target: Target, request: pytest.FixtureRequest) -> SinkOptions:
    topic = request.node.name
    given = {"kafka.bootstrap.servers": target.bootstrap, "topic": topic, "kafka.linger.ms": "0"}
    with headrace.Admin(target.bootstrap) as admin:
        admin.create_topic(topic, 1)
    options = sink_options(given, streaming=True)
    check_cluster(options)
    return options


@pytest.fixture
def cluster(options: SinkOptions) -> Cluster:
    return open_cluster(options)


@pytest.fixture
def once(options: SinkOptions) -> WriteId:
    return WriteId(f"query-{options.topic}", 0)


def write(cluster: Cluster, options: SinkOptions, once: WriteId, partition: int) -> PartitionWrite:
    return write_partition(
        cluster, once, partition, _rows(options.topic or "", once.version, partition)
    )


def _rows(topic: str, version: int, partition: int) -> Iterator[RowBatch]:
    for row in range(2):
        value = b"%d.%d.%d" % (version, partition, row)
        yield RowBatch(1, partial(_one, topic, value), len(value))


def _one(topic: str, value: bytes) -> list[Rows]:
    return [Rows(topic, [(None, value, (), 1, None)])]


def expected(*parts: tuple[int, int]) -> list[bytes]:
    return sorted(b"%d.%d.%d" % (*part, row) for part in parts for row in range(2))


def check(target: Target, options: SinkOptions, *parts: tuple[int, int]) -> None:
    """Check that the topic has each committed value once. Markers may be written after the response to a commit."""
    place = headrace.TopicPartition(options.topic or "", 0)
    wanted = expected(*parts)
    with (
        headrace.Consumer(
            target.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer,
        headrace.Producer(target.bootstrap) as producer,
    ):
        producer.send(place.topic, b"last").result()
        consumer.assign([place])
        found: list[bytes] = []
        while b"last" not in found:
            found += [record.value for record in consumer.poll(1)]
        found.remove(b"last")
        assert sorted(found) == wanted


def test_batches_are_there_once_however_often_they_are_repeated(
    target: Target, options: SinkOptions, cluster: Cluster, once: WriteId
) -> None:
    for version in range(2):
        for repeated in (False, True):
            batch = WriteId(once.name, version)
            writes = [write(cluster, options, batch, number) for number in range(PARTITIONS)]
            assert [each.repeated for each in writes] == [repeated] * PARTITIONS
            commit_batch(cluster, writes, streaming=True)

    assert cluster.kept_claim(once.claim) == cluster.marker(once.claim)
    parts = [(version, number) for version in range(2) for number in range(PARTITIONS)]
    check(target, options, *parts)


def test_a_driver_that_was_replaced_commits_nothing(
    target: Target, options: SinkOptions, cluster: Cluster, once: WriteId
) -> None:
    old = [write(cluster, options, once, number) for number in range(PARTITIONS)]
    new = [write(cluster, options, once, number) for number in range(PARTITIONS)]

    with pytest.raises(HeadraceError, match="3 of 3 partitions are missing"):
        commit_batch(cluster, old, streaming=True)
    commit_batch(cluster, new, streaming=True)

    check(target, options, *((0, number) for number in range(PARTITIONS)))


def test_a_commit_that_ended_in_the_middle_is_completed(
    target: Target, options: SinkOptions, cluster: Cluster, once: WriteId
) -> None:
    first = [write(cluster, options, once, number) for number in range(PARTITIONS)]
    abort_batch(cluster, first[1:])
    with pytest.raises(HeadraceError, match="2 of 3 partitions are missing"):
        commit_batch(cluster, first, streaming=True)
    other = [write(cluster, options, once, number) for number in range(2)]
    with pytest.raises(HeadraceError, match="first written as 3 partitions of 6 rows"):
        commit_batch(cluster, other, streaming=True)
    again = [write(cluster, options, once, number) for number in range(PARTITIONS)]
    commit_batch(cluster, again, streaming=True)

    assert [each.repeated for each in again] == [True, False, False]
    check(target, options, *((0, number) for number in range(PARTITIONS)))
