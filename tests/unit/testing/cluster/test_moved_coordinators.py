"""Headrace's consumers and exactly-once workers go on when the broker that coordinates them is killed or leaves."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import pytest

import headrace
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.coordinator.partitioning import partition_for_key
from headrace.testing.cluster.cluster import Cluster
from headrace.types import TopicPartition

pytestmark = pytest.mark.slow  # sessions of brokers have to expire

ENDS = pytest.mark.parametrize("end", ["kill", "stop"])
COUNT = 300


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    configs = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    with Cluster(3, session_timeout_ms=1_000, configs=configs) as running:
        running.create_topic("t", partitions=3, replication_factor=3)
        running.create_topic("out", partitions=1, replication_factor=3)
        yield running


def coordinator(cluster: Cluster, topic: str, key: str) -> int:
    return cluster.leader(topic, partition_for_key(key, 1))


def end_broker(cluster: Cluster, end: Literal["kill", "stop"], topic: str, key: str) -> int:
    """End the broker that coordinates a group or a transactional id."""
    cluster.wait_in_sync(topic)
    broker = coordinator(cluster, topic, key)
    getattr(cluster, end)(broker)
    return broker


class Assigned:
    """Counts the assignments of partitions."""

    count = 0

    def on_assigned(self, _partitions: object) -> None:
        self.count += 1


@ENDS
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_when_its_coordinator_ends(
    cluster: Cluster, protocol: str, end: Literal["kill", "stop"]
) -> None:
    assigned = Assigned()
    with (
        headrace.Producer(cluster.bootstrap) as producer,
        headrace.Consumer(
            cluster.bootstrap,
            group="g",
            group_protocol=protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        consumer.subscribe(["t"], listener=assigned)
        found: set[bytes] = set()

        def read(number: int) -> None:
            producer.send("t", b"%d" % number).result(30)
            while b"%d" % number not in found:
                found.update(record.value for record in consumer.poll(0.1))
            consumer.commit()

        read(0)
        ended = end_broker(cluster, end, OFFSETS_TOPIC, "g")
        for number in range(1, 20):
            read(number)
        assert coordinator(cluster, OFFSETS_TOPIC, "g") != ended
        cluster.wait_caught_up("g", "t")
    assert assigned.count == 1, "the membership is unchanged"


def committed_results(cluster: Cluster) -> Counter[bytes]:
    """Read the committed results until they are as many as the records, and then whether there are more."""
    results: Counter[bytes] = Counter()
    with headrace.Consumer(
        cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([TopicPartition("out", 0)])
        while sum(results.values()) < COUNT:
            records = consumer.poll(30.0)
            assert records, f"only {len(results)} results"
            results.update(record.value for record in records)
        results.update(record.value for record in consumer.poll(1.0))
    return results


@ENDS
@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_results_of_an_exactly_once_worker_are_there_once_when_a_coordinator_ends(
    cluster: Cluster, topic: str, end: Literal["kill", "stop"]
) -> None:
    app = headrace.App(cluster.bootstrap, group="doubler")

    handled: list[bytes] = []

    @app.worker(
        "t",
        delivery="exactly_once",
        transaction_ms=50,
        transactional_id="doubler",
        auto_offset_reset="earliest",
    )
    async def double(value: bytes, context: headrace.Context) -> None:
        handled.append(value)
        await context.publish("out", value * 2)

    worker = threading.Thread(target=lambda: asyncio.run(app.serve()), daemon=True)
    worker.start()
    try:
        with headrace.Producer(cluster.bootstrap) as producer:
            for number in range(COUNT):
                producer.send("t", b"%d," % number)
                if number == COUNT // 3:
                    producer.flush()
                    cluster.wait_until(lambda: handled)
                    end_broker(cluster, end, topic, "doubler")
            producer.flush()
        results = committed_results(cluster)
    finally:
        app.stop()
        worker.join(30)
    assert results == Counter({b"%d," % number * 2: 1 for number in range(COUNT)})
