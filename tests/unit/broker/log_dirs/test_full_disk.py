"""A disk without space: produces are refused, nothing is lost, and the broker continues when there is space again."""

from __future__ import annotations

import errno

import pytest

from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.ports import LogDirectory
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.records.builder import BatchBuilder
from tests.fixtures.broker_harness import (
    START_MS,
    BrokerHarness,
    batch,
    produce_request,
    values,
)
from tests.fixtures.compaction import keyed
from tests.fixtures.crash_files import CrashFileSystem

MINIMUM = 10_000
WRITES = {"append", "create", "write_file", "make_directory"}


class Disk(CrashFileSystem):
    """A disk that can be full, and reports its free space."""

    def __init__(self) -> None:
        super().__init__()
        self.usable_bytes = 1 << 30
        self.fault = self._refuse
        self.error: int | None = None

    def _refuse(self, kind: str, _path: str) -> int | None:
        return self.error if kind in WRITES else None

    def describe(self) -> LogDirectory:
        return LogDirectory("disk", 1 << 31, self.usable_bytes)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def harness(disk: Disk) -> BrokerHarness:
    made = BrokerHarness(
        files=disk,
        metadata=MemoryMetadataStore(),
        headrace_log_dir_min_free_bytes=MINIMUM,
        offsets_topic_num_partitions=1,
    )
    made.create_topic("t")
    made.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    assert made.produce("t", b"first").error_code == ErrorCode.NONE
    return made


def commit(harness: BrokerHarness, offset: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    return int(harness.call(request).topics[0].partitions[0].error_code)


def committed(harness: BrokerHarness) -> int:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    (answer,) = harness.call(request).groups
    return int(answer.topics[0].partitions[0].committed_offset) if answer.topics else -1


def events(harness: BrokerHarness) -> list[str]:
    return [event for _, event, _ in harness.journal.lines if event.startswith("log_directory")]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_an_append_without_space_is_refused_and_leaves_no_trace(harness, disk, code):
    disk.error, disk.usable_bytes = code, 0
    refused = [harness.produce("t", b"refused") for _ in range(3)]
    for part in refused:
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert ErrorCode(part.error_code).retriable
    assert "space" in refused[-1].error_message
    assert not harness.broker.failed
    assert harness.fetch("t", 0).high_watermark == 1
    assert events(harness) == ["log_directory_short_of_space"]
    disk.error, disk.usable_bytes = None, 1 << 30
    harness.advance(1000)
    assert harness.produce("t", b"second").base_offset == 1
    assert events(harness)[1:] == ["log_directory_has_space_again"]
    harness.restart()
    assert values(harness.fetch("t", 0).records) == [b"first", b"second"]


def test_below_the_minimum_produces_are_refused_and_offsets_are_committed(harness, disk):
    disk.usable_bytes = MINIMUM - 1
    harness.advance(5000)
    assert harness.produce("t", b"refused").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert commit(harness, 7) == ErrorCode.NONE
    disk.usable_bytes = MINIMUM
    harness.advance(1000)
    assert harness.produce("t", b"a").error_code == ErrorCode.NONE


def test_the_minimum_is_kept_without_waiting_for_the_next_look(harness, disk):
    disk.usable_bytes = MINIMUM + 500
    harness.advance(5000)
    written = 0
    while harness.produce("t", b"x" * 100).error_code == ErrorCode.NONE:
        written += 168
        disk.usable_bytes -= 168
        assert written < 1000
    assert disk.usable_bytes > MINIMUM - 500


def test_a_start_with_little_space_serves_readers(harness, disk):
    disk.usable_bytes = 5
    harness.restart()
    assert harness.produce("t", b"refused").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert values(harness.fetch("t", 0).records) == [b"first"]


def test_batches_appended_before_the_disk_was_full_are_acknowledged(harness, disk):
    waiting = harness.send(produce_request("t", 0, batch(b"second")))
    disk.error = errno.ENOSPC
    assert harness.produce("t", b"refused").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    harness.sync()
    assert waiting.response.responses[0].partition_responses[0].base_offset == 1


def test_an_error_that_the_free_space_does_not_explain_counts_for_a_while(harness, disk):
    disk.error = errno.EDQUOT
    assert harness.produce("t", b"refused").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.error = None
    assert harness.produce("t", b"refused").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    harness.advance(10_000)
    assert harness.produce("t", b"second").base_offset == 1
    assert events(harness) == ["log_directory_full", "log_directory_has_space_again"]


def test_an_idempotent_producer_repeats_the_batch_that_was_refused(harness, disk):
    def send(sequence: int):
        builder = BatchBuilder()
        assert builder.append(key=None, value=b"%d" % sequence, timestamp_ms=START_MS)
        records = bytes(builder.build(producer_id=5, producer_epoch=0, base_sequence=sequence))
        request = produce_request("t", 0, records)
        return harness.call(request).responses[0].partition_responses[0]

    assert send(0).base_offset == 1
    disk.error = errno.ENOSPC
    assert send(1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.error = None
    harness.advance(10_000)
    assert send(1).base_offset == 2


def test_a_coordinator_that_cannot_write_is_not_available_and_changes_nothing(harness, disk):
    assert commit(harness, 7) == ErrorCode.NONE
    disk.error, disk.usable_bytes = errno.ENOSPC, 0
    assert commit(harness, 8) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed(harness) == 7
    assert not harness.broker.failed
    disk.error, disk.usable_bytes = None, 1 << 30
    assert commit(harness, 9) == ErrorCode.NONE
    harness.crash()
    assert committed(harness) == 9


def test_checkpoints_and_retention_are_put_off_and_made_up_for(harness, disk):
    harness.create_topic("old", retention_ms="1", segment_bytes="200")
    for _ in range(4):
        harness.produce("old", b"x" * 100)
    disk.error, disk.usable_bytes = errno.ENOSPC, 0
    harness.advance(600_000)
    assert not harness.broker.failed
    assert "upkeep_put_off" in harness.journal.events("warning")
    files = [name for name in disk.list("old-0") if name.endswith(".log")]
    assert len(files) == 4, "files go when the new log start is durable, not before"
    disk.error, disk.usable_bytes = None, 1 << 30
    harness.advance(20_000)
    assert len([name for name in disk.list("old-0") if name.endswith(".log")]) == 1
    harness.crash()
    assert harness.fetch("old", 4).error_code == ErrorCode.NONE


def test_compaction_is_put_off_and_made_up_for(harness, disk):
    def wait() -> None:
        for _ in range(60):
            harness.advance(1000)
            harness.sync()
            while (task := harness.broker.start_compaction()) is not None:
                error: Exception | None = None
                try:
                    task.run()
                except OSError as raised:
                    error = raised
                harness.broker.finish_compaction(task, error, harness.now_ms)

    harness.create_topic(
        "c", cleanup_policy="compact", segment_bytes="200", min_cleanable_dirty_ratio="0.01"
    )
    for number in range(8):
        records = keyed((b"key", b"%d" % number * 50), timestamp=harness.now_ms)
        harness.call(produce_request("c", 0, records))
    log = harness.broker.services.partitions.require("c", 0).log
    before = log.size_bytes
    disk.error, disk.usable_bytes = errno.ENOSPC, 0
    wait()
    assert not harness.broker.failed
    assert log.size_bytes == before
    disk.error, disk.usable_bytes = None, 1 << 30
    wait()
    assert log.size_bytes < before


def test_a_deletion_of_records_without_space_is_a_retriable_error(harness, disk):
    def delete():
        row = DeleteRecordsPartition(partition_index=0, offset=1)
        topics = [DeleteRecordsTopic(name="t", partitions=[row])]
        return harness.call(DeleteRecordsRequest(topics=topics)).topics[0].partitions[0]

    disk.error = errno.ENOSPC
    assert delete().error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not harness.broker.failed
    disk.error = None
    assert (delete().error_code, delete().low_watermark) == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("kind", ["append", "sync", "sync_directory"])
def test_an_input_output_error_ends_the_broker_after_any_operation(harness, disk, kind):
    harness.create_topic("new")
    disk.fault = lambda found, _path: errno.EIO if found == kind else None
    part = harness.produce("new", b"a")
    assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.broker.failed


def test_without_a_minimum_only_a_full_disk_refuses(disk):
    disk.usable_bytes = 1
    harness = BrokerHarness(files=disk, headrace_log_dir_min_free_bytes=0)
    harness.create_topic("t")
    assert harness.produce("t", b"a").error_code == ErrorCode.NONE
    disk.usable_bytes, disk.error = 0, errno.ENOSPC
    assert harness.produce("t", b"b").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.usable_bytes, disk.error = 100, None
    harness.advance(1000)
    assert harness.produce("t", b"b").base_offset == 1


def test_a_shortage_of_space_logs_its_first_refusal_and_its_end(
    harness: BrokerHarness, disk: Disk
) -> None:
    def logged(event: str) -> list[dict[str, object]]:
        return [fields for _, name, fields in harness.journal.lines if name == event]

    for shortage in (1, 2):
        disk.usable_bytes = MINIMUM - 1
        harness.advance(10_000)
        assert len(logged("produce_refused_for_want_of_space")) == shortage - 1
        for _ in range(3):
            part = harness.produce("t", b"refused")
            assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "short of space" in part.error_message
            assert "headrace.log.dir.min.free.bytes" in part.error_message
        (*_, refusal) = logged("produce_refused_for_want_of_space")
        assert len(logged("produce_refused_for_want_of_space")) == shortage
        assert (refusal["free_bytes"], refusal["wanted_bytes"]) == (MINIMUM - 1, MINIMUM)
        disk.usable_bytes = 1 << 30
        harness.advance(10_000)
        assert harness.produce("t", b"accepted").error_code == ErrorCode.NONE
        assert len(logged("log_directory_has_space_again")) == shortage
        assert logged("log_directory_has_space_again")[-1]["refused_produces"] == 3


def test_a_disk_that_fills_up_during_a_produce_is_reported_to_the_client(
    harness: BrokerHarness, disk: Disk
) -> None:
    disk.error = errno.ENOSPC
    part = harness.produce("t", b"refused")
    assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "short of space" in part.error_message
    assert "log_directory_full" in harness.journal.events("error")
