"""Compaction in a broker: topics with `cleanup.policy=compact`, and `__consumer_offsets`."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.waiting.steps import finished
from headrace.errors import ErrorCode, StorageError
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.records.batch import iterate_headers
from headrace.records.reader import Record, read_records
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import BrokerHarness, produce_request, values
from tests.fixtures.compaction import keyed

pytestmark = pytest.mark.slow  # not in `make check`

COMPACT: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": "1000",
    "min_cleanable_dirty_ratio": "0.01",
}
MINUTE_MS = 60_000


def put(harness: BrokerHarness, topic: str, *records: tuple[bytes | None, bytes | None]) -> Any:
    batch = keyed(*records, timestamp=harness.now_ms)
    response = harness.call(produce_request(topic, 0, batch))
    return response.responses[0].partition_responses[0]


def wait(harness: BrokerHarness, milliseconds: int = MINUTE_MS) -> None:
    """Let time pass, and run the work for threads like a server."""
    end_ms = harness.now_ms + milliseconds
    while harness.now_ms < end_ms:
        harness.advance(1000)
        harness.sync()
        while (task := harness.broker.start_compaction()) is not None:
            assert harness.broker.start_compaction() is None  # one step at a time
            error: Exception | None = None
            try:
                task.run()
            except OSError as raised:
                error = raised
            harness.broker.finish_compaction(task, error, harness.now_ms)


def all_records(harness: BrokerHarness, topic: str) -> list[Record]:
    """Read the topic like a consumer: each fetch begins after the last batch of the previous one."""
    records: list[Record] = []
    offset = 0
    while True:
        part = harness.fetch(topic, offset)
        assert part.error_code == 0
        data = bytes(part.records or b"")
        if not data:
            assert offset == part.high_watermark
            return records
        records += read_records(data)
        offset = [header for _, header in iterate_headers(data)][-1].next_offset


@pytest.fixture(params=["memory", "disk"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> BrokerHarness:
    if request.param == "memory":
        return BrokerHarness()
    return BrokerHarness(files=OsFileSystem(tmp_path))


def test_a_compacted_topic_keeps_the_last_value_of_each_key(harness: BrokerHarness) -> None:
    harness.create_topic("t", **COMPACT)
    for number in range(300):
        put(harness, "t", (b"key %d" % (number % 7), b"%d" % number))
    before = harness.broker.services.partitions.require("t", 0).log.size_bytes
    wait(harness)
    records = all_records(harness, "t")
    assert len(records) < 30
    newest = {record.key: record.value for record in records}
    assert newest == {b"key %d" % (number % 7): b"%d" % number for number in range(293, 300)}
    assert harness.broker.services.partitions.require("t", 0).log.size_bytes < before / 5
    assert "log_compacted" in harness.journal.events("info")
    harness.restart()
    assert all_records(harness, "t") == records
    harness.crash()
    assert all_records(harness, "t") == records


def test_a_restart_does_not_compact_a_clean_log_again(tmp_path: Path) -> None:
    harness = BrokerHarness(files=OsFileSystem(tmp_path))
    harness.create_topic("t", **COMPACT)
    for number in range(60):
        put(harness, "t", (b"k", b"%d" % number))
    wait(harness)
    rounds = harness.journal.events("info").count("log_compacted")
    assert rounds
    harness.restart()
    wait(harness)
    assert harness.journal.events("info").count("log_compacted") == rounds
    (tmp_path / "cleaner-offset-checkpoint").write_bytes(b"rubbish")
    harness.restart()
    wait(harness)
    assert harness.journal.events("info").count("log_compacted") == rounds + 1
    assert values(harness.fetch("t", 59).records)[-1] == b"59"


def test_the_cleaner_backoff_can_be_changed_while_the_broker_runs() -> None:
    harness = BrokerHarness()
    harness.create_topic("t", **COMPACT)
    wait(harness)
    hourly = AlterableConfig(name="log.cleaner.backoff.ms", config_operation=0, value="3600000")
    row = AlterConfigsResource(resource_type=4, resource_name="1", configs=[hourly])
    (answer,) = harness.call(IncrementalAlterConfigsRequest(resources=[row])).responses
    assert answer.error_code == ErrorCode.NONE
    wait(harness)  # until the check that was due before
    for number in range(300):
        put(harness, "t", (b"key %d" % (number % 7), b"%d" % number))
    wait(harness)
    assert len(all_records(harness, "t")) == 300
    wait(harness, 61 * MINUTE_MS)
    assert len(all_records(harness, "t")) < 30


def test_other_topics_are_not_compacted(harness: BrokerHarness) -> None:
    harness.create_topic("t", segment_bytes="1000")
    for number in range(50):
        put(harness, "t", (b"k", b"%d" % number), (None, b"no key"))
    wait(harness)
    assert len(all_records(harness, "t")) == 100


def test_the_policy_can_change(harness: BrokerHarness) -> None:
    harness.create_topic("t", segment_bytes="1000", min_cleanable_dirty_ratio="0.01")
    for number in range(50):
        put(harness, "t", (b"k", b"%d" % number))
    topic, admin = harness.broker.services.topics.require("t"), harness.broker.services.topic_admin
    finished(admin.configure(topic, lambda present: {**present, "cleanup.policy": "compact"}))
    wait(harness)
    assert len(all_records(harness, "t")) < 20
    finished(admin.configure(topic, lambda present: {**present, "cleanup.policy": "delete"}))
    for number in range(50):
        put(harness, "t", (b"k", b"%d" % number))
    wait(harness)
    assert len(all_records(harness, "t")) >= 50


def test_both_policies_apply_together() -> None:
    harness = BrokerHarness()
    settings = COMPACT | {"cleanup_policy": "compact,delete", "retention_ms": "600000"}
    harness.create_topic("t", **settings)
    put(harness, "t", (b"old", b"v"))
    for number in range(50):
        put(harness, "t", (b"k", b"%d" % number))
    wait(harness)
    assert {record.key for record in all_records(harness, "t")} == {b"old", b"k"}
    wait(harness, 20 * MINUTE_MS)
    put(harness, "t", (b"new", b"v"))
    log = harness.broker.services.partitions.require("t", 0).log
    assert log.log_start_offset >= 51


def test_a_record_without_a_key_is_refused(harness: BrokerHarness) -> None:
    harness.create_topic("t", **COMPACT)
    part = put(harness, "t", (b"k", b"v"), (None, b"v"))
    assert part.error_code == ErrorCode.INVALID_RECORD
    assert "key" in part.error_message
    assert [entry.batch_index for entry in part.record_errors] == [1]
    assert put(harness, "t", (b"k", b"v")).base_offset == 0


def test_a_topic_may_be_deleted_and_made_again_while_it_is_compacted(tmp_path: Path) -> None:
    harness = BrokerHarness(files=OsFileSystem(tmp_path))
    for generation in range(3):
        harness.create_topic("t", **COMPACT)
        for number in range(100):
            put(harness, "t", (b"k", b"%d/%d" % (generation, number)))
        harness.advance(MINUTE_MS)
        task = harness.broker.start_compaction()
        assert task is not None
        for _ in range(generation):
            task.run()
        harness.delete_topic("t")
        harness.create_topic("t", **COMPACT)
        put(harness, "t", (b"k", b"new"))
        error: Exception | None = None
        try:
            task.run()
        except (OSError, StorageError) as raised:  # it finds other files than expected, or none
            error = raised
        harness.broker.finish_compaction(task, error, harness.now_ms)
        assert not harness.broker.failed
        assert [record.value for record in all_records(harness, "t")] == [b"new"]
        harness.restart()
        assert [record.value for record in all_records(harness, "t")] == [b"new"]
        harness.delete_topic("t")


@pytest.mark.parametrize(("code", "fatal"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_full_disk_postpones_a_round_and_a_broken_one_ends_the_service(
    tmp_path: Path, *, code: int, fatal: bool
) -> None:
    harness = BrokerHarness(files=OsFileSystem(tmp_path))
    harness.create_topic("t", **COMPACT)
    for number in range(100):
        put(harness, "t", (b"k", b"%d" % number))
    harness.advance(MINUTE_MS)
    task = harness.broker.start_compaction()
    assert task is not None
    harness.broker.finish_compaction(task, OSError(code, "made up"), harness.now_ms)
    assert harness.broker.failed is fatal
    if not fatal:
        assert harness.broker.start_compaction() is None
        assert not list(tmp_path.rglob("*.cleaned"))
        wait(harness)
        assert len(all_records(harness, "t")) < 20


# An internal topic


def commit(harness: BrokerHarness, group: str, offset: int, partitions: int = 4) -> None:
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index in range(partitions)
    ]
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=rows)]
    )
    harness.create_offsets_topic()
    response = harness.call(request)
    assert {part.error_code for part in response.topics[0].partitions} == {0}


def committed(harness: BrokerHarness, group: str) -> list[int]:
    wanted = OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1, 2, 3])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
    found = harness.call(request).groups[0]
    assert found.error_code == 0
    return [part.committed_offset for part in found.topics[0].partitions]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_committed_offsets_stay_small_however_often_groups_commit(
    kind: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "offsets_topic_num_partitions": 1,
        "offsets_topic_segment_bytes": 20_000,
    }
    if kind == "disk":
        options["files"] = OsFileSystem(tmp_path)
    harness = BrokerHarness(**options)
    harness.create_topic("t", 4)
    sizes: list[int] = []
    for number in range(1000):
        commit(harness, f"g{number % 5}", number)
        if number % 100 == 99:
            wait(harness, 20_000)
            log = harness.broker.services.partitions.require("__consumer_offsets", 0).log
            sizes.append(log.size_bytes)
            assert log.segment_count < 10
    assert max(sizes) < 100_000  # of 0.5 MB that were written
    assert max(sizes[5:]) <= 1.5 * max(sizes[:5])
    expected = [[995 + group] * 4 for group in range(5)]
    assert [committed(harness, f"g{group}") for group in range(5)] == expected
    harness.crash()
    assert [committed(harness, f"g{group}") for group in range(5)] == expected


def test_a_deleted_group_stays_deleted(tmp_path: Path) -> None:
    harness = BrokerHarness(
        files=OsFileSystem(tmp_path),
        offsets_topic_num_partitions=1,
        offsets_topic_segment_bytes=2000,
        log_cleaner_delete_retention_ms=0,
    )
    harness.create_topic("t", 4)
    commit(harness, "gone", 5)
    harness.delete_topic("t")
    harness.create_topic("t", 4)
    assert committed(harness, "gone") == [-1] * 4
    for number in range(300):
        commit(harness, "stays", number)
        if number % 50 == 0:
            wait(harness)
    log = harness.broker.services.partitions.require("__consumer_offsets", 0).log
    data = log.read(0, max_bytes=1 << 20, up_to=log.log_end_offset, minimum_one=True)
    assert data is not None
    assert not [r for r in read_records(data.read()) if r.key is not None and b"gone" in r.key]
    harness.crash()
    assert committed(harness, "gone") == [-1] * 4
    assert committed(harness, "stays") == [299] * 4
