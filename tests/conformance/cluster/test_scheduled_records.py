"""Scheduled records and retry topics on three brokers, while the leader that keeps the records fails."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest

import headrace
from headrace import TopicPartition
from headrace.testing.cluster.cluster import Cluster

pytestmark = pytest.mark.slow

DELAY_MS: Final = 2_500
RETRY: Final = "retry.3.orders"
FAULTS: Final[dict[str, Callable[[Cluster, int], object]]] = {
    "kill": Cluster.kill,
    "pause": Cluster.pause,
    "stop": Cluster.stop,
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, session_timeout_ms=500) as running:
        yield running


def fail_over(cluster: Cluster, topic: str, fault: str) -> None:
    """Let the leader fail, wait for the next one, and let the broker return."""
    cluster.wait_in_sync(topic, timeout_s=30)
    leader = cluster.leader(topic)
    FAULTS[fault](cluster, leader)
    cluster.wait_until(lambda: cluster.leader(topic) not in {-1, leader})
    cluster.heal()
    if leader not in cluster.running:
        cluster.restart(leader)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_leader_delivers_each_record_once_and_not_early(
    cluster: Cluster, fault: str
) -> None:
    cluster.create_topic("t", configs={"headrace.delay.enable": "true"})
    assert len(cluster.replicas("t")) == 3
    wanted = [b"%d" % number for number in range(50)]
    with headrace.Producer(cluster.bootstrap) as producer:
        start_ms = time.time_ns() // 1_000_000
        for value in wanted:
            producer.send("t", value, delay_ms=DELAY_MS)
        producer.flush()
    fail_over(cluster, "t", fault)
    cluster.wait_in_sync("t", timeout_s=30)
    with headrace.Producer(cluster.bootstrap) as producer:
        producer.send("t", b"last", delay_ms=DELAY_MS)
        producer.flush()
    found: list[bytes | None] = []
    with headrace.Consumer(cluster.bootstrap) as consumer:
        consumer.assign({TopicPartition("t", 0): 0})
        while b"last" not in found:
            for record in consumer.poll(1.0):
                assert record.timestamp_ms >= start_ms + DELAY_MS
                found.append(record.value)
    assert found == [*wanted, b"last"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_with_retry_topics_survives_the_loss_of_a_leader(
    cluster: Cluster, fault: str
) -> None:
    cluster.create_topic("orders")
    wanted = {b"%d" % number for number in range(20)}
    tried: Counter[bytes] = Counter()
    first_at: dict[bytes, float] = {}
    done: dict[bytes, float] = {}
    all_failed, all_done = threading.Event(), threading.Event()
    app = headrace.App(group="g", commit_interval_s=0.05)

    @app.worker("orders", retry=headrace.Retry(attempts=2, first=3, max=3, topics=True))
    async def handle(value: bytes, context: headrace.Context) -> None:
        if context.attempt == 1:
            tried[value] += 1
            first_at[value] = time.monotonic()
            if len(tried) == len(wanted):
                all_failed.set()
            raise ValueError(value)
        done[value] = time.monotonic()
        if len(done) == len(wanted):
            all_done.set()

    with app.test(cluster.bootstrap), headrace.Producer(cluster.bootstrap) as producer:
        for value in wanted:
            producer.send("orders", value)
        producer.flush()
        assert all_failed.wait(30)
        assert len(cluster.replicas(RETRY)) == 3
        fail_over(cluster, RETRY, fault)
        assert all_done.wait(60)
    assert done.keys() == wanted
    assert all(done[value] - first_at[value] >= 2.5 for value in wanted if tried[value] == 1)
