"""The settings replica.*: when a replica leaves the in-sync replicas, and what a follower asks for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace.config.broker import parse_broker_config
from headrace.core.cluster.records import TOPIC_CONFIGS, TopicConfigRecord, encode
from headrace.deferred import Deferred, resolved
from headrace.errors import ConfigError, ErrorCode
from headrace.ports import Put
from headrace.protocol.codec import Message
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tests.fixtures.cluster import SimulatedCluster
from tests.unit.broker.replication.test_replication import isr, register, send


def cluster_with(**options: Any) -> SimulatedCluster:
    cluster = SimulatedCluster(3, **options)
    register(cluster)
    cluster.create_topic("t", replicas=[(1, 2, 3)])
    cluster.advance(100)
    return cluster


def requests_of(cluster: SimulatedCluster, broker_id: int) -> list[Any]:
    """Return a list that gets the fetches that a broker sends from now on."""
    peers, sent = cluster.brokers[broker_id].peers, []
    send_to_peer = peers.send

    def send_noted(broker_id: int, request: Message, deadline_ms: int) -> Deferred[Any]:
        sent.append((request, cluster.now_ms, deadline_ms))
        return send_to_peer(broker_id, request, deadline_ms)

    peers.send = send_noted  # type: ignore[method-assign]  # the test looks at the requests
    return sent


def test_a_replica_leaves_after_the_lag_time_of_the_settings() -> None:
    cluster = cluster_with(replica_lag_time_max_ms=4_000)
    cluster.cut(1, 3)
    send(cluster, b"a")
    cluster.advance(3_900)
    assert isr(cluster) == {1, 2, 3}
    cluster.run_until(lambda: isr(cluster) == {1, 2}, timeout_ms=2_200)


def slow_follower(**options: Any) -> SimulatedCluster:
    """Return a cluster whose broker 3 fetches one batch a second."""
    cluster = cluster_with(replica_fetch_max_bytes=1, **options)
    cluster.links.way(3, 1).delay_ms = lambda: 1_000
    cluster.advance(3_000)
    return cluster


def test_a_replica_leaves_when_it_lags_by_too_many_records_for_ten_seconds() -> None:
    cluster = slow_follower(replica_lag_max_messages=20)
    for _ in range(100):
        send(cluster, b"a", acks=1)
        cluster.advance(90)
    assert isr(cluster) == {1, 2, 3}
    for _ in range(100):
        send(cluster, b"a", acks=1)
        cluster.advance(90)
    assert isr(cluster) == {1, 2}


@pytest.mark.parametrize(("limit", "records"), [(20, 28), (-1, 200)])
def test_a_burst_does_not_remove_a_replica(limit: int, records: int) -> None:
    cluster = slow_follower(replica_lag_max_messages=limit)
    for _ in range(records):
        send(cluster, b"a", acks=1)
    for _ in range(20):
        cluster.advance(1_000)
        assert isr(cluster) == {1, 2, 3}


def test_a_follower_asks_for_what_the_settings_say() -> None:
    cluster = cluster_with(
        replica_fetch_max_bytes=1_000,
        replica_fetch_response_max_bytes=3_000,
        replica_fetch_wait_max_ms=250,
    )
    sent = requests_of(cluster, 2)
    cluster.produce("t", b"a")
    cluster.advance(1_000)
    assert 4 <= len(sent) <= 7
    for request, now_ms, deadline_ms in sent:
        assert (request.max_bytes, request.max_wait_ms) == (3_000, 250)
        assert deadline_ms == now_ms + 10_250
        for topic in request.topics:
            assert [each.partition_max_bytes for each in topic.partitions] == [1_000]


def test_a_follower_pauses_for_the_backoff_after_an_error() -> None:
    cluster = cluster_with(replica_fetch_backoff_ms=100)
    cluster.kill(1)
    sent = requests_of(cluster, 2)
    cluster.advance(2_000)
    assert 15 <= len(sent) <= 21


def test_a_fetch_that_waits_longer_than_the_lag_time_is_refused() -> None:
    values = {"replica.fetch.wait.max.ms": "500", "replica.lag.time.max.ms": "499"}
    with pytest.raises(ConfigError, match=r"exceeds replica.lag.time.max.ms=499"):
        parse_broker_config(values)
    parse_broker_config({**values, "replica.lag.time.max.ms": "500"})


def test_a_lost_request_is_given_up_within_the_lag_time() -> None:
    cluster = cluster_with(replica_lag_time_max_ms=6_000)
    cluster.links.way(2, 1).fates.append("request lost")
    sent = requests_of(cluster, 2)
    cluster.run_until(lambda: len(sent) >= 3)
    assert {deadline_ms - now_ms for _, now_ms, deadline_ms in sent} == {2_500}
    cluster.advance(10_000)
    assert isr(cluster) == {1, 2, 3}


def test_a_follower_that_is_refused_soon_tries_again() -> None:
    cluster = cluster_with()
    follower = cluster.brokers[2]
    send_to_peer, refused = follower.peers.send, list[int]()

    def refuse(broker_id: int, request: Message, deadline_ms: int) -> Deferred[Any]:
        if len(refused) == 8 or not isinstance(request, FetchRequest) or not request.topics:
            return send_to_peer(broker_id, request, deadline_ms)
        refused.append(cluster.now_ms)
        (topic,) = request.topics
        code = ErrorCode.UNKNOWN_LEADER_EPOCH
        part = PartitionData(partition_index=0, error_code=code, records=b"")
        answer = FetchableTopicResponse(topic_id=topic.topic_id, partitions=[part])
        return resolved(FetchResponse(responses=[answer]))

    follower.peers.send = refuse  # type: ignore[method-assign]  # the leader does not know that it leads
    cluster.produce("t", b"a", acks=1)
    cluster.run_until(lambda: cluster.replica(1, "t").high_watermark == 1)
    pauses = [after - before for before, after in itertools.pairwise(refused)]
    assert pauses == [20, 40, 80, 160, 320, 640, 1_000]


def test_a_smaller_min_insync_replicas_commits_what_waits_at_once() -> None:
    cluster = SimulatedCluster(3)
    cluster.create_topic("t", replicas=[(1, 2, 3)], min_insync_replicas="2")
    for broker_id in (2, 3):
        cluster.kill(broker_id, ends_session=True)
    cluster.run_until(lambda: cluster.state("t").elr == (2, 3))
    cluster.produce("t", b"a", acks=1)
    assert cluster.replica(1, "t").high_watermark == 0
    record = TopicConfigRecord({"min.insync.replicas": "1"})
    cluster.commit(Put(f"{TOPIC_CONFIGS}t", encode(record)))
    cluster.run_until(lambda: cluster.replica(1, "t").high_watermark == 1, timeout_ms=100)
    assert cluster.state("t").elr == ()
