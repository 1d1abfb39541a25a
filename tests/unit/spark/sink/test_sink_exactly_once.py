"""Errors of exactly-once writes whose result is uncertain; test_sink_once.py checks the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import headrace
from headrace.clients.blocking import OffsetAndMetadata
from headrace.clients.producer.many import Rows
from headrace.config.resources import ConfigResourceType
from headrace.errors import ApiError, ErrorCode, HeadraceError
from headrace.protocol.api_keys import ApiKey
from headrace.spark.options.reader import ClientOptions
from headrace.spark.options.sink import CLAIM_TOPIC, MARKER_TOPIC, SinkOptions, WriteId
from headrace.spark.sink import cluster as clusters
from headrace.spark.sink import exactly_once
from headrace.spark.sink.cluster import Cluster, check_cluster, open_cluster
from headrace.spark.sink.exactly_once import (
    PartitionWrite,
    RowBatch,
    abort_batch,
    commit_batch,
    write_partition,
)
from headrace.testing import Broker, error

OPTIONS = SinkOptions(
    ClientOptions("unused:1", (("linger.ms", "0"),)), topic="t", exactly_once=True
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(configs={"offsets.retention.minutes": "60"}) as broker:
        broker.create_topic("t", configs={"retention.ms": "-1"})
        broker.create_topic(MARKER_TOPIC)
        broker.create_topic(CLAIM_TOPIC, configs={"cleanup.policy": "compact"})
        yield broker


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    cluster = open_cluster(OPTIONS, broker)
    yield cluster
    cluster.client.close()


def record(row: int) -> list[Rows]:
    return [Rows("t", [(None, b"%d" % row, (), 0, None)])]


def write(
    cluster: Cluster, version: int, *rows: int, partition: int = 0, name: str = "q"
) -> PartitionWrite:
    given = iter([RowBatch(1, partial(record, row), len(f"{row}")) for row in rows])
    return write_partition(cluster, WriteId(name, version), partition, given)


def commit(cluster: Cluster, *writes: PartitionWrite, fail_on_lost_marker: bool = True) -> None:
    commit_batch(cluster, writes, streaming=True, fail_on_lost_marker=fail_on_lost_marker)


def values(broker: Broker) -> list[bytes | None]:
    with headrace.Consumer(
        broker, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        place = headrace.TopicPartition("t", 0)
        consumer.assign([place])
        found = []
        while (consumer.position(place) or 0) < consumer.end_offsets([place])[place]:
            found += [record.value for record in consumer.poll(0.01)]
        return found


def test_a_batch_is_visible_only_after_its_commit(broker: Broker, cluster: Cluster) -> None:
    first, empty = write(cluster, 0, 1, 2), write(cluster, 0, partition=1)
    assert values(broker) == []
    commit(cluster, first, empty)
    assert values(broker) == [b"1", b"2"]

    again = write(cluster, 0, 1, 2)
    commit(cluster, again, empty)

    assert (again.repeated, again.records, empty.transaction) == (True, 2, None)
    assert values(broker) == [b"1", b"2"]


def test_a_writer_named_like_another_writers_partition_is_independent(
    broker: Broker, cluster: Cluster
) -> None:
    commit(cluster, write(cluster, 0, 1), write(cluster, 0, 2, partition=1))

    commit(cluster, write(cluster, 0, 3, name="q-1"))

    assert values(broker) == [b"1", b"2", b"3"]
    assert write(cluster, 0, 2, partition=1).repeated


def test_an_aborted_batch_is_invisible_and_delays_no_reader(
    broker: Broker, cluster: Cluster
) -> None:
    abort_batch(cluster, [write(cluster, 0, 1)])
    broker.publish("t", b"other")
    assert values(broker) == [b"other"]


def test_a_task_whose_rows_cannot_be_written_aborts(broker: Broker, cluster: Cluster) -> None:
    large = iter([RowBatch(1, lambda: [Rows("t", [(None, b"x" * (2 << 20), (), 0, None)])])])
    with pytest.raises(HeadraceError, match=r"max\.request\.size"):
        write_partition(cluster, WriteId("q", 0), 0, large)
    broker.publish("t", b"other")
    assert values(broker) == [b"other"]


def test_a_batch_longer_than_its_transaction_timeout_must_be_repeated(
    broker: Broker, cluster: Cluster
) -> None:
    late = write(cluster, 0, 1)
    broker.advance(901_000)

    with pytest.raises(
        HeadraceError, match=r"longer than kafka\.transaction\.timeout\.ms, raise that"
    ):
        commit(cluster, late)
    commit(cluster, write(cluster, 0, 1))

    assert values(broker) == [b"1"]


def test_missing_markers_of_a_later_batch_are_an_error(broker: Broker, cluster: Cluster) -> None:
    lost = write(cluster, 5, 1)
    with pytest.raises(HeadraceError, match=r"(?s)is not known any more.*failOnLostMarker=false"):
        commit(cluster, lost)
    assert values(broker) == []

    commit(cluster, lost, fail_on_lost_marker=False)

    assert values(broker) == [b"1"]
    commit(cluster, write(cluster, 6, 2))


def forget_offsets(broker: Broker) -> None:
    broker.advance(2 * 3_600_000)


def test_a_query_that_was_stopped_for_long_continues(broker: Broker, cluster: Cluster) -> None:
    for version in range(3):
        commit(cluster, write(cluster, version, version))
    forget_offsets(broker)

    commit(cluster, write(cluster, 3, 3))
    commit(cluster, write(cluster, 4, 4))

    assert values(broker) == [b"0", b"1", b"2", b"3", b"4"]


def test_an_old_claim_without_markers_is_an_error(broker: Broker, cluster: Cluster) -> None:
    commit(cluster, write(cluster, 0, 1))
    begun = [write(cluster, 1, 2), write(cluster, 1, 3, partition=1)]
    abort_batch(cluster, begun[1:])
    with pytest.raises(HeadraceError, match="1 of 2 partitions are missing"):
        commit(cluster, *begun)
    forget_offsets(broker)

    def again() -> list[PartitionWrite]:
        return [write(cluster, 1, 2), write(cluster, 1, 3, partition=1)]

    with pytest.raises(HeadraceError, match="brokers delete markers when a query was stopped"):
        commit(cluster, *again())
    assert values(broker) == [b"1", b"2"]
    commit(cluster, *again(), fail_on_lost_marker=False)
    commit(cluster, write(cluster, 2, 4))

    assert sorted(map(str, values(broker))) == ["b'1'", "b'2'", "b'2'", "b'3'", "b'4'"]


def test_markers_that_expire_before_the_claim_are_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = [write(cluster, 0, 1), write(cluster, 0, 2, partition=1)]
    abort_batch(cluster, begun[1:])
    with pytest.raises(HeadraceError, match="1 of 2 partitions are missing"):
        commit(cluster, *begun)
    later_ms = exactly_once._now_ms() + exactly_once.MARKERS_KEPT_MS + 1
    monkeypatch.setattr(exactly_once, "_now_ms", lambda: later_ms)

    with pytest.raises(HeadraceError, match="brokers delete markers when a query was stopped"):
        commit(cluster, write(cluster, 0, 1), write(cluster, 0, 2, partition=1))


def test_the_claim_of_an_earlier_version_is_taken_over(broker: Broker, cluster: Cluster) -> None:
    with cluster.new_producer(WriteId("q", 4).claim) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        cluster.mark(producer, WriteId("q", 4).claim, OffsetAndMetadata(5, "1 1 1"))
        producer.commit_transaction()

    commit(cluster, write(cluster, 5, 1))
    forget_offsets(broker)
    commit(cluster, write(cluster, 6, 2))

    assert values(broker) == [b"1", b"2"]


def test_a_marker_without_a_claim_is_an_error(broker: Broker, cluster: Cluster) -> None:
    commit(cluster, write(cluster, 0, 1))
    with cluster.new_producer("q-1") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        cluster.mark(producer, "q-1", OffsetAndMetadata(2, "1"))
        producer.commit_transaction()

    with pytest.raises(HeadraceError, match="Parts of batch 1 may have been written"):
        commit(cluster, write(cluster, 1, 2), write(cluster, 1, 3, partition=1))


def test_a_claim_waits_while_another_is_in_flight(cluster: Cluster) -> None:
    commit(cluster, write(cluster, 0, 1))
    cluster.client.config = dataclasses.replace(cluster.client.config, request_timeout_ms=300)
    other = cluster.new_producer("other-claim")
    other.init_transactions()
    other.begin_transaction()
    cluster.claim(other, "other-claim", OffsetAndMetadata(1))
    other.flush()

    with pytest.raises(HeadraceError, match="cannot be read to its end"):
        cluster.kept_claim("q-claim")
    other.commit_transaction()
    other.close()

    kept = cluster.kept_claim("q-claim")
    assert kept is not None
    assert kept.offset == 1


def test_an_unreadable_claim_topic_is_an_error_with_the_reason(
    broker: Broker, cluster: Cluster
) -> None:
    commit(cluster, write(cluster, 0, 1))
    cluster.client.config = dataclasses.replace(cluster.client.config, request_timeout_ms=300)
    with (
        broker.faults.on(ApiKey.FETCH, error("KAFKA_STORAGE_ERROR")),
        pytest.raises(HeadraceError, match=r"last error: KAFKA_STORAGE_ERROR.*free space"),
    ):
        cluster.kept_claim("q-claim")


def test_a_checkpoint_that_was_set_back_is_an_error(cluster: Cluster) -> None:
    for version in range(3):
        commit(cluster, write(cluster, version, version))
    with pytest.raises(HeadraceError, match="batch 1 of q comes after batch 2 was written"):
        write(cluster, 1, 1)
    other = write(cluster, 1, 1, partition=7)
    with pytest.raises(HeadraceError, match="batch 1 of q comes after batch 2 was written"):
        commit(cluster, other)


def test_another_division_is_refused_if_a_part_is_committed(
    broker: Broker, cluster: Cluster
) -> None:
    first = [write(cluster, 0, 1, 2), write(cluster, 0, 3, partition=1)]
    abort_batch(cluster, first[1:])
    with pytest.raises(HeadraceError, match="1 of 2 partitions are missing"):
        commit(cluster, *first)

    for other in (
        [write(cluster, 0, 1, 2, 3)],
        [write(cluster, 0, 1), write(cluster, 0, 2, 3, partition=1)],
        [write(cluster, 0, 1, 2), write(cluster, 0, 3, 4, partition=1)],
        [write(cluster, 0, 1, 22), write(cluster, 0, 3, partition=1)],
    ):
        with pytest.raises(
            HeadraceError,
            match=r"first written as 2 partitions of 3 rows; .* 1 partitions were committed\. Until this batch",
        ):
            commit(cluster, *other)
        assert values(broker) == [b"1", b"2"]

    commit(cluster, write(cluster, 0, 1, 2), write(cluster, 0, 3, partition=1))
    assert values(broker) == [b"1", b"2", b"3"]


def test_another_division_does_not_matter_if_all_is_committed(
    broker: Broker, cluster: Cluster
) -> None:
    commit(
        cluster,
        write(cluster, 0, 1, 2),
        write(cluster, 0, partition=1),
        write(cluster, 0, 3, partition=2),
    )

    commit(cluster, write(cluster, 0, 1), write(cluster, 0, 2, 3, partition=1))

    assert values(broker) == [b"1", b"2", b"3"]
    with pytest.raises(HeadraceError, match="2 partitions were committed"):
        commit(cluster, write(cluster, 0, 1, 2, 3, 4))


def test_an_uncommitted_batch_may_have_a_new_division_at_the_second_start(
    broker: Broker, cluster: Cluster
) -> None:
    late = [write(cluster, 0, 1), write(cluster, 0, 2, partition=1)]
    broker.advance(901_000)
    with pytest.raises(HeadraceError, match="2 of 2 partitions are missing"):
        commit(cluster, *late)

    with pytest.raises(HeadraceError, match="No part of it was committed: start the query again"):
        commit(cluster, write(cluster, 0, 1, 2))
    assert values(broker) == []
    commit(cluster, write(cluster, 0, 1, 2))

    assert values(broker) == [b"1", b"2"]


def test_missing_topics_of_a_write_are_created_or_reported_before_the_job(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.delete_topic(MARKER_TOPIC)
    broker.delete_topic(CLAIM_TOPIC)
    opened = open_cluster(OPTIONS, broker)
    monkeypatch.setattr(clusters, "open_cluster", lambda _: opened)
    monkeypatch.setattr(clusters, "_checked", set())

    check_cluster(OPTIONS)

    assert {MARKER_TOPIC, CLAIM_TOPIC} <= set(broker.topics())
    (cleanup,) = [
        each.value
        for each in opened.client.describe_configs(ConfigResourceType.TOPIC, [CLAIM_TOPIC])[
            CLAIM_TOPIC
        ]
        if each.name == "cleanup.policy"
    ]
    assert cleanup == "compact"
    opened.client.close()


def test_a_topic_that_only_some_brokers_know_yet_can_be_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cluster.client.metadata
    behind = [ApiError.for_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic t")] * 2

    def metadata(*arguments: Any, **options: Any) -> Any:
        if behind:
            raise behind.pop()
        return whole(*arguments, **options)

    monkeypatch.setattr(cluster.client, "metadata", metadata)
    monkeypatch.setattr(clusters, "open_cluster", lambda _: cluster)
    monkeypatch.setattr(clusters, "_checked", set())

    check_cluster(OPTIONS)

    assert not behind
