"""The committed offsets of a topic are deleted with the topic, even if the deletion could not be written at once."""

from __future__ import annotations

import pytest

from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.crash_files import CrashFileSystem


def committed(harness: BrokerHarness) -> dict[tuple[str, int], int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    (found,) = harness.call(request).groups
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in found.topics
        for part in topic.partitions
    }


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness(files=CrashFileSystem(), metadata=MemoryMetadataStore())
    commit_offsets(made)
    return made


def commit_offsets(made: BrokerHarness) -> None:
    """Create two topics, and commit offsets of a group for them."""
    made.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    topics = []
    for name in ("gone", "kept"):
        made.create_topic(name, partitions=2)
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=5)
            for index in (0, 1)
        ]
        topics.append(OffsetCommitRequestTopic(name=name, partitions=partitions))
    response = made.call(
        OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    )
    assert {part.error_code for topic in response.topics for part in topic.partitions} == {0}


DELETE = DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")])
KEPT = {("kept", 0): 5, ("kept", 1): 5}


def power_cut(harness: BrokerHarness, seed: int) -> None:
    assert isinstance(harness.files, CrashFileSystem)
    harness.files = harness.files.after_power_cut(seed)
    harness.crash()


def test_the_response_is_sent_when_a_power_cut_cannot_restore_the_offsets(
    harness: BrokerHarness,
) -> None:
    pending = harness.send(DELETE, 6)
    assert not pending.done, "not durable yet"
    harness.sync()
    assert [result.error_code for result in pending.response.responses] == [0]
    harness.create_topic("gone", partitions=2)
    power_cut(harness, seed=0)
    assert committed(harness) == KEPT, "the new topic inherits nothing"


@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_before_the_response_does_not_restore_deleted_offsets(
    harness: BrokerHarness, seed: int
) -> None:
    harness.send(DELETE, 6)
    power_cut(harness, seed)
    assert committed(harness) == KEPT
    harness.create_topic("gone", partitions=2)
    assert committed(harness) == KEPT
    harness.sync()
    harness.crash()
    assert committed(harness) == KEPT
    assert harness.journal.events("info").count("offsets_of_deleted_topics_forgotten") <= 1


def test_a_partition_that_is_not_loaded_forgets_when_it_is(harness: BrokerHarness) -> None:
    index = harness.broker.services.groups.partition_for("g")
    assert index is not None
    harness.broker.services.groups.unload(index)
    harness.call(DELETE, 6)
    harness.restart()
    assert committed(harness) == KEPT


def test_committed_offsets_of_existing_topics_survive_a_restart(harness: BrokerHarness) -> None:
    before = committed(harness)
    assert len(before) == 4
    for again in (harness.restart, harness.crash):
        again()
        assert committed(harness) == before
