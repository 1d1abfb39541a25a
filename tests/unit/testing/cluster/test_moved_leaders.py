"""Clients of a real cluster follow a leader that moves, without a request for metadata (KIP-951)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest

import headrace
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import (
    REGISTRATIONS,
    TOPICS,
    PartitionState,
    RegistrationRecord,
    TopicRecord,
    decode,
    encode,
)
from headrace.ports import Put
from headrace.protocol.api_keys import ApiKey
from headrace.testing.cluster.cluster import Cluster
from headrace.types import TopicPartition

pytestmark = pytest.mark.slow  # a follower of a leader that is new may pause for a second

T0: Final = TopicPartition("t", 0)
OPTIONS: Final[dict[str, Any]] = {"retry_backoff_ms": 20_000, "retry_backoff_max_ms": 20_000}
"""Backoffs that are longer than the test: nothing may wait for one."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return two brokers with a topic on both of them."""
    with Cluster(2) as running:
        running.create_topic("t", replication_factor=2)
        running.wait_in_sync("t")
        yield running


class Requests:
    """The requests that the brokers of a cluster handle from now on, by API."""

    def __init__(self, cluster: Cluster) -> None:
        self.counts: Counter[ApiKey] = Counter()
        for number in cluster.running:
            cluster._nodes[number].run(self._count)

    def _count(self, service: Any) -> None:
        handle = service.broker.handle

        def counted(context: Any, request: Any) -> Any:
            if not context.session.is_broker and not context.session.is_local:
                self.counts[request.API_KEY] += 1
            return handle(context, request)

        service.broker.handle = counted


def move(cluster: Cluster) -> int:
    """Make the follower the leader, as a controller does, and wait until both brokers know it."""
    present = cluster._views.state(T0)
    leader = 3 - present.leader
    entry = cluster.metadata.get(TOPICS + "t")
    registration = cluster.metadata.get(f"{REGISTRATIONS}{leader}")
    assert entry is not None
    assert registration is not None
    broker_epoch = decode(registration, RegistrationRecord).broker_epoch
    state = PartitionState(leader, present.leader_epoch + 1, present.isr, (), broker_epoch)
    key = state_key(bytes.fromhex(decode(entry, TopicRecord).topic_id), 0)
    session = cluster.metadata.begin_session()
    cluster.metadata.commit([], [Put(key, encode(state))], session)
    cluster.wait_until(lambda: {leads(cluster, 1), leads(cluster, 2)} == {leader})
    return leader


def leads(cluster: Cluster, broker: int) -> int:
    """Return the leader that a broker knows, once the role of its replica is that of the state."""

    def known(service: Any) -> int:
        services = service.broker.services
        partition = services.partitions.find("t", 0)
        state = services.topics.state(services.topics.require("t"), 0)
        return int(state.leader if partition.leader_epoch == state.leader_epoch else -1)

    return cluster._nodes[broker].run(known)


def test_a_producer_follows_the_leader_without_a_request_for_metadata(cluster: Cluster) -> None:
    with headrace.Producer(cluster.bootstrap, **OPTIONS) as producer:
        assert producer.send("t", b"0").result(10).offset == 0
        requests = Requests(cluster)
        for number in (1, 2, 3):
            move(cluster)
            assert producer.send("t", bytes([number])).result(10).offset == number
    assert requests.counts[ApiKey.METADATA] == 0
    assert requests.counts[ApiKey.PRODUCE] == 6, "each record once in vain, once at the leader"


def test_a_consumer_follows_the_leader_without_a_request_for_metadata(cluster: Cluster) -> None:
    with (
        headrace.Producer(cluster.bootstrap, **OPTIONS) as producer,
        headrace.Consumer(cluster.bootstrap, auto_offset_reset="earliest", **OPTIONS) as consumer,
    ):
        consumer.assign([T0])
        producer.send("t", b"0").result(10)
        assert [record.value for record in consumer.poll(10)] == [b"0"]
        requests = Requests(cluster)
        for number in (1, 2, 3):
            move(cluster)
            producer.send("t", bytes([number])).result(10)
            assert [record.value for record in consumer.poll(10)] == [bytes([number])]
    assert requests.counts[ApiKey.METADATA] == 0
