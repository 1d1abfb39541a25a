"""The broker over real files and SQLite, as `headrace serve` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ErrorCode
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import (
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
    values,
)


class Disk:
    """A data directory with one broker after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: SqliteMetadataStore | None = None

    def open(self, **options) -> BrokerHarness:
        files = OsFileSystem(self.path)
        self.store = SqliteMetadataStore(self.path / "metadata.sqlite")
        return BrokerHarness(
            files=files, metadata=self.store, offsets_topic_num_partitions=2, **options
        )

    def end(self) -> None:
        if self.store is not None:
            self.store.close()


@pytest.fixture
def disk(tmp_path: Path):
    made = Disk(tmp_path)
    yield made
    made.end()


def commit(harness: BrokerHarness):
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    return harness.send(
        OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
    )


@pytest.mark.parametrize("close", [True, False], ids=["clean", "killed"])
def test_topics_and_records_survive_a_restart(disk: Disk, close):
    harness = disk.open(log_segment_bytes=1000)
    topic_id = harness.create_topic("t", partitions=2).topic_id
    for number in range(20):
        harness.produce("t", b"%d" % number * 100, partition=number % 2)
    assert len(list((disk.path / "t-0").glob("*.log"))) > 1
    if close:
        harness.broker.close(harness.now_ms)
    disk.end()

    harness = disk.open(log_segment_bytes=1000)
    assert harness.broker.services.topics.require("t").topic_id == topic_id
    found: list[bytes | None] = []
    while len(found) < 10:
        part = harness.fetch("t", len(found))
        assert part.error_code == ErrorCode.NONE
        found += values(part.records)
    assert found == [b"%d" % number * 100 for number in range(0, 20, 2)]


def test_a_large_fetch_is_served_as_a_range_of_the_file(disk: Disk):
    harness = disk.open()
    harness.create_topic("t")
    for _ in range(3):
        harness.produce("t", b"x" * 100_000)
    assert len(values(harness.fetch("t", 0).records)) == 3


@pytest.mark.slow
def test_with_durability_os_commits_of_groups_are_synced_all_the_same(disk: Disk):
    harness = disk.open(durability="os")
    harness.create_topic("t")
    assert harness.send(produce_request("t", 0, batch(b"a"))).done
    pending = commit(harness)
    assert not pending.done
    assert harness.sync()
    assert pending.response.topics[0].partitions[0].error_code == ErrorCode.NONE
    # The records of the topic neither waited for a sync of another topic nor took part in it.
    assert harness.broker.services.partitions.require("t", 0).log.synced_offset == 0


def test_a_deletion_of_a_topic_removes_its_directory_and_completes_waiting_requests(disk: Disk):
    harness = disk.open()
    harness.create_topic("t")
    harness.produce("t", b"a")
    waiting = harness.send(fetch_request(("t", 0, 1)))
    in_flight = harness.send(produce_request("t", 0, batch(b"b")))
    running = harness.broker.start_sync()
    assert running is not None
    harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    assert [waiting.done, in_flight.done] == [True, True]
    running.run()
    harness.broker.finish_sync(running, None, harness.now_ms)
    assert not harness.broker.failed
    assert not list(disk.path.glob("t-*"))
    harness.create_topic("t")
    assert harness.produce("t", b"new").base_offset == 0


def test_a_disk_that_refuses_is_the_end(disk: Disk):
    harness = disk.open()
    harness.create_topic("t")
    harness.produce("t", b"a")
    log = harness.broker.services.partitions.require("t", 0).log
    waiting = harness.send(produce_request("t", 0, batch(b"b")))
    harness.sync(OSError(28, "No space left on device"))
    assert log.failure is not None
    error = waiting.response.responses[0].partition_responses[0].error_code
    assert error == ErrorCode.KAFKA_STORAGE_ERROR
    harness.broker.close(harness.now_ms)
    assert not (disk.path / "clean_shutdown").exists()
    disk.end()
    # The next start finds the acknowledged records. The rest depends on the disk.
    harness = disk.open()
    assert values(harness.fetch("t", 0).records)[:1] == [b"a"]
