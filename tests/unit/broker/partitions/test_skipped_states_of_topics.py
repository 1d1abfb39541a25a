"""A broker that misses states of topics ends with the topics that the metadata store has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.cluster.records import TombstoneRecord, TopicConfigRecord, TopicRecord, encode
from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.ports import Delete, MetadataBatch, Put
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.fixtures.broker_harness import BrokerHarness, values
from tests.fixtures.metadata_stores import commit, stored
from tests.unit.broker.coordinators.test_offsets_of_deleted_topics import commit_offsets, committed
from tests.unit.broker.metadata.test_two_brokers import Cluster, configure, set_quota
from tests.unit.broker.partitions.test_topics_of_two_brokers import delete, grow, topics
from tests.unit.broker.quotas.test_quotas import Harness

TOPIC = 2


class AwayStore(MemoryMetadataStore):
    """A store whose reader can be away, and gets a snapshot when it is back."""

    away = False

    def __init__(self, content: MemoryMetadata) -> None:
        super().__init__(content)
        self._of_all = MemoryMetadataStore(content)

    def watch(self, callback: Callable[[MetadataBatch], object]) -> Callable[[], object]:
        """Begin a watch that passes nothing on while the reader is away."""
        self._callback = callback
        return super().watch(lambda batch: None if self.away else callback(batch))

    def return_without(self, *keys: str) -> None:
        """Let the reader be back. Its snapshot lacks some keys."""
        self.away = False
        entries = stored(self._of_all)
        kept = [entries[key] for key in sorted(entries) if key not in keys]
        self._callback(MetadataBatch(snapshot=True, puts=kept))


class AwayCluster(Cluster):
    """Two brokers of which the first one can be away from the metadata store."""

    def __init__(self) -> None:
        content = self.content = MemoryMetadata()
        self.store = MemoryMetadataStore(content)
        self.away = AwayStore(content)
        self.one = Harness(metadata=self.away, broker_id=1)
        self.two = Harness(metadata=MemoryMetadataStore(content), broker_id=2)
        for _ in range(100):
            self.two.entropy.uuid()  # the brokers give different topic ids
        self.tick()


@pytest.fixture
def cluster() -> AwayCluster:
    return AwayCluster()


def settle(cluster: AwayCluster) -> None:
    cluster.tick()
    while cluster.one.step() or cluster.two.step():
        pass


def record(topic_id: int, partitions: int, broker: int = 1) -> bytes:
    return encode(TopicRecord(f"{topic_id:032x}", [(broker,)] * partitions))


def count(harness: Harness, name: str) -> int:
    return len(topics(harness)[name].partitions)


def test_a_topic_that_one_commit_replaces_begins_empty(cluster: AwayCluster) -> None:
    one = cluster.one
    old = one.create_topic("t", partitions=3).topic_id.hex()
    one.produce("t", b"old", partition=2)
    tombstone = encode(TombstoneRecord("t", 3, (1,)))
    commit(cluster.store, [], [Put("topics/t", record(7, 2)), Put(f"deleted/{old}", tombstone)])
    settle(cluster)
    for harness in (one, cluster.two):
        assert topics(harness)["t"].topic_id == (7).to_bytes(16)
        assert count(harness, "t") == 2
    assert "t-2" not in one.files.list("")
    assert not stored(cluster.store, "deleted/")
    assert one.produce("t", b"new").base_offset == 0
    assert values(one.fetch("t", 0).records) == [b"new"]


def states(harness: BrokerHarness) -> dict[str, Any]:
    """Return the ids, settings, replicas and states of all topics."""
    found = harness.broker.services.topics
    return {
        topic.name: (
            topic.topic_id,
            topic.settings,
            topic.replicas,
            [found.state(topic, index) for index in range(topic.partitions_count)],
        )
        for topic in found
    }


def test_a_broker_that_was_away_applies_the_difference(cluster: AwayCluster) -> None:
    one, two = cluster.one, cluster.two
    for name in ("again", "deleted", "grown"):
        one.create_topic(name, partitions=2, **{"max.message.bytes": "1000"})
        one.produce(name, b"old")
    one.create_topic("kept")
    one.produce("kept", b"kept")
    settle(cluster)
    cluster.away.away = True
    for name in ("again", "deleted"):
        assert delete(two, name) == ErrorCode.NONE
    two.create_topic("again", partitions=5)
    assert grow(two, "grown", 4) == ErrorCode.NONE
    configure(two, TOPIC, "grown", "max.message.bytes", "100")
    two.create_topic("brief")
    assert delete(two, "brief") == ErrorCode.NONE
    two.create_topic("new")
    settle(cluster)
    cluster.away.return_without()
    settle(cluster)
    assert states(one) == states(two)
    assert sorted(topics(one)) == ["again", "grown", "kept", "new"]
    assert (count(one, "again"), count(one, "grown")) == (5, 4)
    assert one.broker.services.topics.require("again").settings == {}
    assert one.produce("grown", bytes(500)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert one.produce("again", b"a").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    left = {name.rpartition("-")[0] for name in one.files.list("") if name.endswith("-0")}
    assert left == {"grown", "kept"}
    assert not stored(cluster.store, "deleted/")


def test_a_topic_that_a_snapshot_lacks_without_a_tombstone_keeps_its_files(
    cluster: AwayCluster,
) -> None:
    one = cluster.one
    one.create_topic("t")
    one.produce("t", b"a")
    one.sync()
    cluster.away.return_without("topics/t")
    settle(cluster)
    assert topics(one) == {}
    assert one.produce("t", b"a").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "t-0" in one.files.list("")
    assert ("info", "topic_deleted") in [line[:2] for line in one.journal.lines]
    one.restart()
    assert values(one.fetch("t", 0).records) == [b"a"]


@pytest.mark.parametrize("topic_id", [3, 12], ids=["first", "again"])
def test_a_new_topic_has_the_settings_of_its_commit_from_the_beginning(
    cluster: AwayCluster, topic_id: int
) -> None:
    one = cluster.one
    operations: list[Put | Delete] = [
        Put("config/topic/t", encode(TopicConfigRecord({"max.message.bytes": "100"}))),
        Put("topics/t", record(topic_id, 1)),
    ]
    if topic_id == 12:
        old = one.create_topic("t", 1, **{"max.message.bytes": "1000", "retention.ms": "7"})
        tombstone = encode(TombstoneRecord("t", 1, (1,)))
        operations.append(Put(f"deleted/{old.topic_id.hex()}", tombstone))
    commit(cluster.store, [], operations)
    settle(cluster)
    topic = one.broker.services.topics.require("t")
    assert topic.settings == {"max.message.bytes": "100"}
    assert one.produce("t", bytes(500)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    partition = one.broker.services.partitions.require("t", 0)
    assert partition.log.config.max_message_bytes == 100


def delete_it(harness: Harness) -> ErrorCode:
    return delete(harness, "t")


def grow_it(harness: Harness) -> ErrorCode:
    return grow(harness, "t", 9)


@pytest.mark.parametrize("change", [delete_it, grow_it])
def test_a_request_to_a_broker_that_is_behind_does_not_change_the_next_topic_of_the_name(
    cluster: AwayCluster, change: Any
) -> None:
    one, two = cluster.one, cluster.two
    one.create_topic("t")
    settle(cluster)
    cluster.away.away = True
    assert delete(two, "t") == ErrorCode.NONE
    two.create_topic("t", partitions=2)
    before = stored(cluster.store, "topics/"), stored(cluster.store, "config/")
    assert change(one) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert (stored(cluster.store, "topics/"), stored(cluster.store, "config/")) == before
    assert len(stored(cluster.store, "deleted/")) == 1, "only that of the first topic"


def test_settings_of_a_broker_that_is_behind_are_not_given_to_the_next_topic_of_the_name(
    cluster: AwayCluster,
) -> None:
    one, two = cluster.one, cluster.two
    one.create_topic("t")
    settle(cluster)
    cluster.away.away = True
    assert delete(two, "t") == ErrorCode.NONE
    two.create_topic("t", partitions=2)
    settle(cluster)
    change = AlterableConfig(name="retention.ms", config_operation=0, value="7")
    row = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[change])
    pending = one.send(IncrementalAlterConfigsRequest(resources=[row]))
    assert pending.waits
    cluster.away.return_without()
    settle(cluster)
    code = pending.response.responses[0].error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not stored(cluster.store, "config/")


def test_a_change_that_arrives_during_an_own_commit_is_applied_in_the_next_tick(
    cluster: AwayCluster,
) -> None:
    one, two = cluster.one, cluster.two
    two.create_topic("t")
    set_quota(one, 5.0)
    assert one.broker.next_deadline_ms == 0
    one.advance(0)
    assert "t" in topics(one)


def test_a_group_forgets_its_offsets_of_a_topic_that_the_other_broker_deletes(
    cluster: AwayCluster,
) -> None:
    one, two = cluster.one, cluster.two
    commit_offsets(one)
    settle(cluster)
    assert delete(two, "gone") == ErrorCode.NONE
    settle(cluster)
    assert committed(one) == {("kept", 0): 5, ("kept", 1): 5}


def test_only_a_broker_that_may_have_files_removes_the_tombstone(cluster: AwayCluster) -> None:
    one, two = cluster.one, cluster.two
    one.create_topic("t")
    one.produce("t", b"a")
    settle(cluster)
    cluster.away.away = True
    before = cluster.content.version
    assert delete(two, "t") == ErrorCode.NONE
    (tombstone,) = stored(cluster.store, "deleted/").values()
    assert cluster.content.version == before + 1, "broker 2 has nothing to store about its files"
    two.restart()
    assert list(stored(cluster.store, "deleted/").values()) == [tombstone]
    assert "topic_deletion_finished" not in two.journal.events("info")
    cluster.away.away = False
    one.crash()
    assert not stored(cluster.store, "deleted/")
    assert "t-0" not in one.files.list("")


def test_the_creation_of_an_internal_topic_leaves_topics_alone_that_are_opened_in_steps():
    cluster = Cluster()
    services = cluster.one.broker.services
    record = TopicRecord("77" * 16, [(1,)] * 2_000)
    commit(cluster.store, [], [Put("topics/large", encode(record))])
    cluster.one.broker.tick(cluster.one.now_ms)
    assert services.topics.get("large") is None
    settings = TopicConfigRecord({"retention.ms": "5"})
    commit(cluster.store, [], [Put("config/topic/large", encode(settings))])
    cluster.one.create_offsets_topic()
    while cluster.one.step():
        pass
    large = services.topics.require("large")
    assert large.config.retention_ms == 5
    assert len(services.partitions.of(large)) == 2_000
