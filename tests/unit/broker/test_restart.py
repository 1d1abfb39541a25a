"""The state that a restart keeps, after a shutdown or a crash: topics, records, epochs, committed offsets."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode, StorageError
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.ports import Delete, Put
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.fixtures.broker_harness import (
    BrokerHarness,
    Pending,
    batch,
    fetch_request,
    produce_request,
    values,
)
from tests.fixtures.metadata_stores import stored


@pytest.fixture(params=["restart", "crash"])
def again(request: pytest.FixtureRequest):
    return lambda harness, **options: getattr(harness, request.param)(**options)


def leader_epoch(harness: BrokerHarness) -> int:
    (topic,) = harness.call(MetadataRequest(topics=None)).topics
    return int(topic.partitions[0].leader_epoch)


def test_topics_records_and_offsets_survive_a_restart(again):
    harness = BrokerHarness()
    first = harness.create_topic("t", partitions=3, retention_ms="-1").topic_id
    for partition in (0, 2):
        harness.produce("t", b"a", b"b", partition=partition)
    again(harness)
    (topic,) = harness.call(MetadataRequest(topics=None)).topics
    assert (topic.name, topic.topic_id, len(topic.partitions)) == ("t", first, 3)
    assert values(harness.fetch("t", 0, partition=2).records) == [b"a", b"b"]
    assert harness.fetch("t", 0, partition=1).high_watermark == 0
    assert harness.produce("t", b"c", partition=0).base_offset == 2


def test_the_cluster_id_stays(again):
    harness = BrokerHarness()
    before = harness.call(MetadataRequest(topics=[])).cluster_id
    again(harness)
    assert harness.call(MetadataRequest(topics=[])).cluster_id == before


def test_the_leader_epoch_grows_with_every_start_and_never_goes_back(again):
    harness = BrokerHarness()
    harness.create_topic("t")
    seen = []
    for _ in range(4):
        seen.append(leader_epoch(harness))
        harness.produce("t", b"a")
        again(harness)
    assert seen == [0, 1, 2, 3]


def test_the_leader_epoch_never_decreases_if_the_metadata_is_older_than_a_log():
    harness = BrokerHarness()
    harness.create_topic("t")
    for _ in range(3):
        harness.restart()
        harness.produce("t", b"a")
    assert leader_epoch(harness) == 3
    registration = b'{"broker_epoch":0,"format":1}'
    harness.metadata.commit([], [Put("brokers/registration/1", registration)])
    harness.restart()
    assert leader_epoch(harness) == 3
    assert harness.produce("t", b"b").error_code == ErrorCode.NONE
    harness.restart()
    assert leader_epoch(harness) == 4


def test_a_topic_takes_the_stored_leader_epochs_of_its_partitions_with_it():
    harness = BrokerHarness()
    harness.create_topic("t", partitions=200)
    for partition in range(200):
        harness.produce("t", b"a", partition=partition)
    harness.restart()
    for partition in range(200):
        harness.produce("t", b"a", partition=partition)
    registration = b'{"broker_epoch":-1,"format":1}'
    harness.metadata.commit([], [Put("brokers/registration/1", registration)])
    harness.restart()
    assert len(stored(harness.metadata, "state/")) == 200
    harness.restart()
    assert leader_epoch(harness) == 2
    harness.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="t", topic_id=bytes(16))]))
    while harness.step():
        pass
    assert not stored(harness.metadata, "state/")
    assert not stored(harness.metadata, "deleted/")


def test_a_data_directory_of_another_cluster_is_refused():
    files = BrokerHarness().files
    other = MemoryMetadataStore()
    other.commit([], [Put("meta/cluster_id", b'{"cluster_id":"another","format":1}')])
    with pytest.raises(StorageError, match=r"meta\.properties"):
        BrokerHarness(files=files, metadata=other)
    with pytest.raises(StorageError, match=r"meta\.properties"):
        BrokerHarness(files=files, broker_id=2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topics/t", b"{"),
        ("topics/t", b'{"topic_id":"zz","partitions":[[1]],"format":1}'),
        ("topics/t", b'{"topic_id":"%s","partitions":[],"format":1}' % (b"11" * 16)),
        ("topics/t", b'{"topic_id":"%s","partitions":[[1]],"format":3}' % (b"11" * 16)),
        (
            "topics/t",
            b'{"topic_id":"%s","partitions":[[1]],"format":2,"directories":[]}' % (b"11" * 16),
        ),
        ("topics/../t", b'{"topic_id":"%s","partitions":[[1]],"format":1}' % (b"11" * 16)),
    ],
)
def test_a_stored_topic_that_cannot_be_read_is_reported_and_the_others_are_served(key, value):
    harness = BrokerHarness()
    harness.create_topic("other")
    harness.metadata.commit([], [Put(key, value)])
    harness.crash()
    name = key.removeprefix("topics/")
    ((_, _, fields),) = [line for line in harness.journal.lines if line[1] == "topic_not_applied"]
    assert (fields["topic"], key in str(fields["error"])) == (name, True)
    assert [topic.name for topic in harness.broker.services.topics] == ["other"]
    if name == "t":
        with pytest.raises(AssertionError, match="already exists"):
            harness.create_topic("t")
    assert stored(harness.metadata, key)[key].value == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("meta/cluster_id", b'{"format":1}'),
        ("deleted/11", b"[]"),
    ],
)
def test_metadata_that_cannot_be_read_is_an_error_and_not_an_empty_broker(key, value):
    harness = BrokerHarness()
    harness.metadata.commit([], [Put(key, value)])
    with pytest.raises(StorageError, match=key.split("/", maxsplit=1)[0]):
        harness.crash()


def test_a_topic_with_a_setting_that_is_no_longer_acceptable_keeps_its_records():
    harness = BrokerHarness()
    harness.create_topic("t")
    harness.produce("t", b"a")
    value = b'{"settings":{"compression.type":"brotli"},"format":1}'
    harness.metadata.commit([], [Put("config/topic/t", value)])
    harness.crash()
    assert harness.broker.services.topics.get("t") is None
    ((_, _, fields),) = [line for line in harness.journal.lines if line[1] == "topic_not_applied"]
    assert "expected one of" in str(fields["error"])
    harness.metadata.commit([], [Delete("config/topic/t")])
    harness.advance(0)
    assert values(harness.fetch("t", 0).records) == [b"a"]


def test_a_damaged_partition_is_not_served_and_the_others_are():
    harness = BrokerHarness()
    harness.create_topic("t", partitions=2)
    for partition in (0, 1):
        harness.produce("t", b"a" * 100, partition=partition)
    harness.advance(120_000)  # recovery points are stored
    harness.broker.close(harness.now_ms)
    file = harness.files.open("t-0/00000000000000000000.log")
    content = file.read(0, file.size)
    file.truncate(0)
    file.append([content[:-1] + b"\xff"])
    harness.files.remove("clean_shutdown")
    for name in harness.files.list("t-0"):
        if name.endswith(".index"):
            harness.files.remove(f"t-0/{name}")
    harness.crash()

    damaged, sound = harness.call(MetadataRequest(topics=None)).topics[0].partitions
    assert (damaged.error_code, damaged.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (sound.error_code, sound.leader_id) == (ErrorCode.NONE, 1)
    assert harness.fetch("t", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", b"b").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert values(harness.fetch("t", 0, partition=1).records) == [b"a" * 100]
    # A deletion of the topic removes the data.
    response = harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    assert response.responses[0].error_code == ErrorCode.NONE
    harness.create_topic("t")
    assert harness.produce("t", b"new").base_offset == 0


# Groups in the broker


def commit(harness: BrokerHarness, offset: int, group: str = "g") -> Pending:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    return harness.send(request)


def committed(harness: BrokerHarness, group: str = "g") -> int | None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    (found,) = harness.call(request).groups
    assert found.error_code == ErrorCode.NONE
    return found.topics[0].partitions[0].committed_offset if found.topics else None


def with_groups(**options) -> BrokerHarness:
    harness = BrokerHarness(offsets_topic_num_partitions=3, **options)
    harness.create_topic("t")
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    return harness


def test_a_commit_is_answered_when_it_is_durable():
    harness = with_groups()
    pending = commit(harness, 5)
    assert not pending.done
    harness.sync()
    assert pending.response.topics[0].partitions[0].error_code == ErrorCode.NONE


def test_committed_offsets_survive_a_restart(again):
    harness = with_groups()
    for group in ("g", "h", "i", "j"):
        commit(harness, 5, group)
    harness.sync()
    commit(harness, 7, "h")
    harness.sync()
    again(harness)
    assert [committed(harness, group) for group in ("g", "h", "i", "j", "k")] == [5, 7, 5, 5, None]


def test_in_memory_a_commit_does_not_wait():
    harness = with_groups(durability="os")
    assert commit(harness, 5).done
    assert not harness.sync()
    assert committed(harness) == 5


def test_the_number_of_offsets_partitions_is_fixed_at_creation(again):
    harness = with_groups()
    commit(harness, 5)
    harness.sync()
    again(harness, offsets_topic_num_partitions=7)
    assert harness.broker.services.topics.require("__consumer_offsets").partitions_count == 3
    assert committed(harness) == 5


def test_the_offsets_topic_does_not_exist_before_the_first_group():
    harness = BrokerHarness()
    assert harness.call(ListGroupsRequest()).error_code == ErrorCode.NONE
    assert harness.broker.services.topics.get("__consumer_offsets") is None


def test_deleting_a_topic_deletes_its_committed_offsets(again):
    harness = with_groups()
    commit(harness, 5)
    harness.sync()
    harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    harness.sync()
    assert committed(harness) is None
    harness.create_topic("t")
    again(harness)
    assert committed(harness) is None


def test_the_offsets_topic_can_be_read_by_consumers():
    harness = with_groups()
    commit(harness, 5)
    harness.sync()
    parts = harness.call(
        fetch_request(*[("__consumer_offsets", p, 0) for p in range(3)], max_wait_ms=0)
    )
    assert sum(len(p.records) > 0 for t in parts.responses for p in t.partitions) == 1


def test_a_failed_sync_fails_commits_too():
    harness = with_groups()
    commit(harness, 5)
    harness.sync()
    pending = commit(harness, 6)
    harness.sync(OSError(5, "Input/output error"))
    error = pending.response.topics[0].partitions[0].error_code
    assert error != ErrorCode.NONE
    late = commit(harness, 7)
    assert late.response.topics[0].partitions[0].error_code != ErrorCode.NONE


# Time


def test_old_segments_are_deleted_and_the_log_start_moves():
    harness = BrokerHarness()
    harness.create_topic("t", segment_bytes="300", retention_ms="60000")
    for _ in range(6):
        harness.produce("t", b"a" * 100)
    harness.advance(3_600_000)
    harness.sync()
    part = harness.fetch("t", 0)
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert part.log_start_offset > 0
    start = part.log_start_offset
    harness.restart()
    assert harness.fetch("t", start).log_start_offset == start
    assert harness.produce("t", b"a").base_offset == 6


def test_retention_deletes_nothing_of_a_compacted_topic():
    harness = BrokerHarness()
    harness.create_topic("t", segment_bytes="300", retention_ms="1", cleanup_policy="compact")
    for _ in range(6):
        harness.produce("t", b"a" * 100)
    harness.advance(3_600_000)
    assert harness.fetch("t", 0).log_start_offset == 0


def test_an_idle_broker_has_few_deadlines():
    harness = BrokerHarness()
    harness.create_topic("t")
    harness.advance(1000)
    ticks = 0
    end_ms = harness.now_ms + 600_000
    while (deadline_ms := harness.broker.next_deadline_ms) is not None and deadline_ms <= end_ms:
        harness.now_ms = deadline_ms
        harness.broker.tick(deadline_ms)
        ticks += 1
    assert ticks < 40


def test_requests_that_wait_when_the_broker_closes_are_simply_left(again):
    harness = BrokerHarness()
    harness.create_topic("t")
    fetching = harness.send(fetch_request(("t", 0, 0), max_wait_ms=60_000))
    producing = harness.send(produce_request("t", 0, batch(b"a")))
    again(harness)
    assert [fetching.done, producing.done] == [False, False]
    assert values(harness.fetch("t", 0).records) == [b"a"]
