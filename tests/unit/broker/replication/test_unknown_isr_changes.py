"""Changes of in-sync replicas whose outcome is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.replica.isr import Phase
from headrace.deferred import Deferred
from headrace.metadata_stores.sessions import SimulatedMetadataStore
from headrace.ports import CommitOutcome, Unknown
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.fixtures.cluster import SimulatedCluster

TOPICS = ("deleted", "kept")


def test_a_change_is_settled_while_the_topic_of_another_change_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = SimulatedCluster(3)
    for topic in TOPICS:
        cluster.create_topic(topic, replicas=[(1, 2, 3)])
    cluster.advance(1_000)
    leader, outcome, send = (
        cluster.brokers[1],
        Deferred[CommitOutcome](),
        SimulatedMetadataStore.commit,
    )

    def commit(store: SimulatedMetadataStore, checks: Any, operations: Any) -> Any:
        if store is leader.metadata and operations[-1].key.endswith("/isr"):
            return outcome
        return send(store, checks, operations)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedMetadataStore, "commit", commit)
        cluster.kill(3, ends_session=True)
        isr = {topic: cluster.replica(1, topic).isr for topic in TOPICS}
        cluster.run_until(
            lambda: all(
                each is not None and each.phase is Phase.UNRESOLVED for each in isr.values()
            )
        )
        wanted = DeleteTopicState(name=TOPICS[0])
        leader.call(DeleteTopicsRequest(topics=[wanted], topic_names=[TOPICS[0]]), 4)
    leader.run(lambda: outcome.resolve(Unknown("the connection is broken")))
    cluster.run_until(lambda: cluster.state(TOPICS[1]).isr == (1, 2))
