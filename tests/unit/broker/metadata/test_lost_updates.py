"""Two requests that change the same entry at once: each change is kept, on one broker and on two."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.metadata import commit_lane
from headrace.core.cluster.records import TombstoneRecord, TopicRecord, encode
from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata_stores.sessions import SimulatedMetadataStore, Timeline
from headrace.ports import Delete, Put, check_of
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.fixtures.broker_harness import START_MS, BrokerHarness, Pending
from tests.fixtures.metadata_stores import commit, stored

TOPIC, BROKER, GROUP = 2, 4, 32
DELAY_MS = 20


class Cluster:
    """Two brokers with one metadata store, whose messages take time."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.content = MemoryMetadata()
        self.timeline = Timeline(lambda: self.now_ms)
        self.delay_ms = 0
        self.brokers = [
            BrokerHarness(metadata=self._session(), broker_id=number) for number in (1, 2)
        ]
        self.brokers[0].create_topic("t")
        self.advance(0)
        self.delay_ms = DELAY_MS

    def _session(self) -> SimulatedMetadataStore:
        return SimulatedMetadataStore(self.content, self.timeline, delay_ms=lambda: self.delay_ms)

    @property
    def store(self) -> MemoryMetadataStore:
        """A session of neither broker."""
        return MemoryMetadataStore(self.content)

    def advance(self, milliseconds: int) -> None:
        for _ in range(milliseconds + 1):
            self.timeline.run()
            for each in self.brokers:
                each.broker.tick(self.now_ms)
            self.now_ms += 1


@pytest.fixture(params=[(0, 1), (0, 0)], ids=["two brokers", "one broker"])
def pair(request: pytest.FixtureRequest) -> tuple[Cluster, list[BrokerHarness]]:
    cluster = Cluster()
    return cluster, [cluster.brokers[number] for number in request.param]


Pair = tuple[Cluster, list[BrokerHarness]]


def alter(harness: BrokerHarness, kind: int, resource: str, name: str, value: str) -> Pending:
    change = AlterableConfig(name=name, config_operation=0, value=value)
    row = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[change])
    return harness.send(IncrementalAlterConfigsRequest(resources=[row]))


def set_quota(harness: BrokerHarness, name: str, value: float) -> Pending:
    row = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name="c")],
        ops=[OpData(key=name, value=value)],
    )
    return harness.send(AlterClientQuotasRequest(entries=[row]))


def codes(cluster: Cluster, pending: list[Pending]) -> list[int]:
    assert all(each.waits for each in pending)
    cluster.advance(20 * DELAY_MS)
    rows: list[Any] = []
    for each in pending:
        rows += getattr(each.response, "responses", None) or each.response.entries
    return [row.error_code for row in rows]


def value_of(cluster: Cluster, key: str) -> str:
    return stored(cluster.store)[key].value.decode()


@pytest.mark.parametrize(
    ("kind", "resource", "key", "names"),
    [
        (BROKER, "", "config/broker/default", ("log.retention.bytes", "message.max.bytes")),
        (
            GROUP,
            "g",
            "config/group/g",
            ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"),
        ),
        (TOPIC, "t", "config/topic/t", ("retention.bytes", "max.message.bytes")),
    ],
)
def test_two_requests_that_configure_a_resource_at_once_keep_both_settings(
    pair: Pair, kind: int, resource: str, key: str, names: tuple[str, str]
) -> None:
    cluster, brokers = pair
    pending = [
        alter(harness, kind, resource, name, value)
        for harness, name, value in zip(brokers, names, ("50000", "6000"), strict=True)
    ]
    assert codes(cluster, pending) == [ErrorCode.NONE] * 2
    for name in names:
        assert f'"{name}"' in value_of(cluster, key)


def test_two_requests_that_change_a_quota_at_once_keep_both_quotas(pair: Pair) -> None:
    cluster, brokers = pair
    names = "producer_byte_rate", "consumer_byte_rate"
    pending = [set_quota(*each, 9.0) for each in zip(brokers, names, strict=True)]
    assert codes(cluster, pending) == [ErrorCode.NONE] * 2
    for name in names:
        assert name in value_of(cluster, "quota/client-id=c")


def test_requests_of_one_broker_are_merged_in_their_order() -> None:
    cluster = Cluster()
    (one, _) = cluster.brokers
    pending = [set_quota(one, "producer_byte_rate", float(value)) for value in range(1, 30)]
    cluster.advance(100 * DELAY_MS)
    assert [each.response.entries[0].error_code for each in pending] == [ErrorCode.NONE] * 29
    assert '"producer_byte_rate":29.0' in value_of(cluster, "quota/client-id=c")


def test_a_change_ends_with_an_error_if_other_brokers_are_always_faster() -> None:
    cluster = Cluster()
    (one, _) = cluster.brokers
    pending = set_quota(one, "producer_byte_rate", 5.0)
    other = b'{"entity":{"client-id":"c"},"quotas":{"consumer_byte_rate":%d.0},"format":1}'
    for number in range(1, 2_000):
        commit(cluster.store, [], [Put("quota/client-id=c", other % number)])
        cluster.advance(0)
        if pending.done:
            break
    row = pending.response.entries[0]
    assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert f"{commit_lane.MERGE_ATTEMPTS} changes of other brokers" in row.error_message


def test_a_change_of_an_entry_that_cannot_be_read_is_refused_and_keeps_the_entry() -> None:
    cluster = Cluster()
    newer = b'{"entity":{"client-id":"c"},"quotas":{"producer_byte_rate":1},"format":99}'
    commit(cluster.store, [], [Put("quota/client-id=c", newer)])
    cluster.advance(2 * DELAY_MS)
    pending = set_quota(cluster.brokers[0], "consumer_byte_rate", 5.0)
    assert pending.response.entries[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert value_of(cluster, "quota/client-id=c") == newer.decode()


def test_the_last_of_two_brokers_that_remove_files_at_once_removes_the_tombstone() -> None:
    cluster = Cluster()
    topic_id = "ab" * 16
    topic = Put("topics/u", encode(TopicRecord(topic_id, [(1, 2), (2, 1)])))
    commit(cluster.store, [], [topic])
    cluster.advance(4 * DELAY_MS)
    for harness in cluster.brokers:
        assert harness.broker.services.topics.get("u") is not None
    tombstone = Put(f"deleted/{topic_id}", encode(TombstoneRecord("u", 2, (1, 2))))
    check = check_of("topics/u", stored(cluster.store)["topics/u"])
    commit(cluster.store, [check], [Delete("topics/u"), tombstone])
    cluster.advance(20 * DELAY_MS)
    assert stored(cluster.store, "deleted/") == {}
    for harness in cluster.brokers:
        assert harness.broker.services.topics.get("u") is None
