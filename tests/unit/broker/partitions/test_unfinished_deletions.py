"""A broker removes a deleted topic for good, although the metadata store does not respond meanwhile."""

from __future__ import annotations

import pytest

from headrace.core.cluster.records import DELETED, STATES
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.fixtures.broker_harness import values
from tests.fixtures.cluster import SimulatedCluster


def cut_while_broker_2_deletes(seed: int) -> SimulatedCluster:
    """Return a cluster in which broker 2 has lost the store when it had removed its files of topic "t"."""
    cluster = SimulatedCluster(2, seed=seed)
    cluster.create_topic("t", replicas=[(1, 2)])
    assert cluster.produce("t", b"a").error_code == 0
    topics = [DeleteTopicState(name="t", topic_id=bytes(16))]
    cluster.brokers[1].send(DeleteTopicsRequest(topics=topics, timeout_ms=5_000))
    cluster.run_until(lambda: cluster.brokers[2].broker.services.topics.get("t") is None)
    cluster.cut_store(2)
    cluster.advance(15_000)
    return cluster


def left(cluster: SimulatedCluster) -> list[str]:
    """Return the keys that the metadata store has of deleted topics."""
    keys = [entry.key for entry in cluster.content.entries()]
    return [key for key in keys if key.startswith((DELETED, STATES))]


def events(cluster: SimulatedCluster) -> list[str]:
    lines = cluster.brokers[2].journal.lines
    return [event for _, event, _ in lines if event.startswith("topic_delet")]


@pytest.mark.parametrize("seed", [1, 3])
def test_a_deletion_whose_outcome_is_unknown_is_repeated(seed: int) -> None:
    """The store has stored the commit with seed 1, and not with seed 3."""
    cluster = cut_while_broker_2_deletes(seed)
    assert bool(left(cluster)) is (seed == 3)
    assert events(cluster) == ["topic_deletion_not_finished"]
    cluster.heal()
    cluster.run_until(lambda: events(cluster)[1:] == ["topic_deleted"])
    assert left(cluster) == []


def test_a_repeated_deletion_leaves_a_new_topic_of_the_same_name_alone() -> None:
    cluster = cut_while_broker_2_deletes(3)
    cluster.create_topic("t", replicas=[(1, 2)])
    cluster.heal()
    assert cluster.produce("t", b"b").error_code == 0
    cluster.run_until(lambda: "topic_deleted" in events(cluster) and cluster.is_in_sync("t"))
    assert not any(key.startswith(DELETED) for key in left(cluster))
    assert values(cluster.fetch("t", 0).records) == [b"b"]
