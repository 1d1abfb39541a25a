"""A broker of a cluster that stops: other brokers lead its partitions before it ends."""

from __future__ import annotations

import time

import pytest

import headrace.server.service
from headrace.testing.cluster.cluster import Cluster

PARTITIONS = 12
_QUICK = {"replica.lag.time.max.ms": 200, "replica.fetch.wait.max.ms": 100}


def leaders(cluster: Cluster) -> set[int]:
    return {cluster.leader("t", index) for index in range(PARTITIONS)}


def test_a_broker_leads_nothing_when_it_has_stopped() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("t", PARTITIONS, replication_factor=3)
        cluster.wait_in_sync("t")
        assert leaders(cluster) == {1, 2, 3}
        cluster.stop(2)
        assert leaders(cluster) == {1, 3}
        cluster.stop(1)
        assert leaders(cluster) == {3}
        began_s = time.monotonic()
        cluster.stop(3)
        assert time.monotonic() - began_s < 5, "no broker is left that could lead"


def test_a_broker_stops_in_the_end_although_no_other_replica_is_in_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headrace.server.service, "HANDOVER_TIMEOUT_S", 0.05)
    with Cluster(2, configs=_QUICK) as cluster:
        cluster.create_topic("t", 2, replication_factor=2)
        cluster.wait_in_sync("t")
        led = next(index for index in range(2) if cluster.leader("t", index) == 1)
        cluster.cut(1, 2)
        cluster.publish("t", b"a", partition=led)  # the other replica lacks the record
        cluster.wait_until(lambda: cluster.isr("t", led) == (1,))
        cluster.stop(1)
        assert cluster.running == [2]
        assert cluster.leader("t", led) == -1
