from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.core.log import LogConfig, LogManager, PartitionLog, PartitionSpec, SyncTask
from headrace.core.log.log_manager import CLEAN_FILE
from headrace.core.log.upkeep.deletions import RETRY_INTERVAL_MS
from headrace.core.log.upkeep.upkeep import RETENTION_INTERVAL_MS, UPKEEP_AT_ONCE
from headrace.core.meta_properties import META_FILE
from headrace.errors import ApiError, StorageError
from headrace.ports import FileSystem
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.os_files import OsFileSystem
from headrace.types import TopicPartition
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.logs import NOW_MS, RecordingJournal, append, batch_of, records_of

A, B = TopicPartition("a", 0), TopicPartition("b.c-d", 11)
ID, OTHER_ID = b"\1" * 16, b"\2" * 16


class StubbornFiles(MemoryFileSystem):
    """Files that cannot be removed for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.stubborn = False
        self.attempts = 0

    def remove_tree(self, path: str) -> None:
        if self.stubborn:
            self.attempts += 1
            raise OSError(errno.EACCES, "Permission denied", path)
        super().remove_tree(path)


def start(
    files: FileSystem,
    *partitions: TopicPartition,
    topic_id: bytes = ID,
    config: LogConfig | None = None,
    journal: RecordingJournal | None = None,
) -> LogManager:
    manager = LogManager.open(
        files, cluster_id="c1", node_id=1, journal=journal or RecordingJournal()
    )
    specs = [PartitionSpec(partition, topic_id, config or LogConfig()) for partition in partitions]
    manager.load(specs, NOW_MS)
    return manager


def log_of(manager: LogManager, partition: TopicPartition) -> PartitionLog:
    log = manager.get(partition)
    assert log is not None
    return log


def commit(manager: LogManager) -> list[TopicPartition]:
    batch = manager.start_sync()
    if batch is None:
        return []
    batch.run()
    return [log.topic_partition for log in manager.finish_sync(batch)]


def test_logs_open_after_a_clean_shutdown_without_a_scan() -> None:
    files = MemoryFileSystem()
    manager = start(files, A, B)
    append(log_of(manager, A), batch_of(3))
    append(log_of(manager, B), batch_of(2))
    manager.close(NOW_MS)
    assert CLEAN_FILE in files.list("")
    manager = start(files, A, B)
    assert CLEAN_FILE not in files.list("")
    assert [len(records_of(log_of(manager, partition))) for partition in (A, B)] == [3, 2]
    assert not any(log.recovery.scanned_bytes for log in manager.logs.values())


def test_without_a_shutdown_logs_are_read() -> None:
    files = MemoryFileSystem()
    manager = start(files, A)
    append(log_of(manager, A), batch_of(3))
    manager = start(files, A)
    assert log_of(manager, A).recovery.scanned_bytes
    assert len(records_of(log_of(manager, A))) == 3


def test_a_group_commit_collects_the_logs_written_since_the_last_one() -> None:
    manager = start(MemoryFileSystem(), A, B)
    assert manager.start_sync() is None
    append(log_of(manager, A), batch_of())
    assert manager.sync_due
    batch = manager.start_sync()
    assert batch is not None
    append(log_of(manager, B), batch_of())
    append(log_of(manager, A), batch_of())
    assert manager.start_sync() is None  # one at a time
    batch.run()
    assert manager.finish_sync(batch) == [log_of(manager, A)]
    assert (log_of(manager, A).synced_offset, log_of(manager, B).synced_offset) == (1, 0)
    assert commit(manager) == [B, A]
    assert commit(manager) == []


def test_the_runner_of_tasks_syncs_a_recovery_before_the_load_returns() -> None:
    files = CrashFileSystem()
    manager = start(files, A, B)
    append(log_of(manager, A), batch_of())
    append(log_of(manager, B), batch_of(2))
    ran: list[int] = []  # the process is killed; the page cache survives

    def run_tasks(tasks: Sequence[SyncTask]) -> None:
        for task in tasks:
            task.run()
            ran.append(task.end_offset)

    manager = LogManager.open(
        files, cluster_id="c1", node_id=1, journal=RecordingJournal(), run_tasks=run_tasks
    )
    manager.load([PartitionSpec(each, ID, LogConfig()) for each in (A, B)], NOW_MS)
    assert ran == [1, 2]
    for seed in range(10):
        manager = start(files.after_power_cut(seed), A, B)
        assert log_of(manager, A).log_end_offset == 1
        assert log_of(manager, B).log_end_offset == 2


def test_after_a_crash_only_data_since_the_clean_shutdown_is_read() -> None:
    files = MemoryFileSystem()
    manager = start(files, A, B)
    for partition in (A, B):
        append(log_of(manager, partition), batch_of(3))
    manager.close(NOW_MS)
    manager = start(files, A, B)
    append(log_of(manager, B), batch_of(2))
    manager = start(files, A, B)  # it was killed
    assert log_of(manager, A).recovery.scanned_bytes == 0
    assert log_of(manager, B).recovery.scanned_bytes
    assert [log_of(manager, each).log_end_offset for each in (A, B)] == [3, 5]
    append(log_of(manager, A), batch_of(1))
    manager = start(files, A, B)
    assert log_of(manager, A).recovery.scanned_bytes
    assert len(records_of(log_of(manager, A))) == 4


def test_a_failed_sync_fails_the_whole_directory_for_good() -> None:
    files, journal = CrashFileSystem(), RecordingJournal()
    manager = start(files, A, B, journal=journal)
    append(log_of(manager, A), batch_of())
    files.fault = lambda kind, _path: errno.EIO if kind == "sync" else None
    batch = manager.start_sync()
    assert batch is not None
    with pytest.raises(OSError, match="EIO") as caught:
        batch.run()
    assert manager.finish_sync(batch, caught.value) == []
    files.fault = None
    assert log_of(manager, A).synced_offset == 0
    for partition in (A, B):
        with pytest.raises(ApiError):
            append(log_of(manager, partition), batch_of())
    assert manager.start_sync() is None
    assert journal.named("log_directory_failed")
    manager.tick(NOW_MS + 10**9)
    manager.close(NOW_MS)
    assert CLEAN_FILE not in files.list("")
    # The data that the failed sync lost was never acknowledged. The next start finds a sound log.
    manager = start(files.after_power_cut(0), A, B)
    assert log_of(manager, A).log_end_offset == 0


def test_the_directory_of_another_broker_is_refused() -> None:
    files = MemoryFileSystem()
    start(files)
    for cluster_id, node_id in (("c2", 1), ("c1", 2)):
        with pytest.raises(StorageError, match=r"meta\.properties says .* its own directory"):
            LogManager.open(
                files, cluster_id=cluster_id, node_id=node_id, journal=RecordingJournal()
            )
    content = files.read_file(META_FILE) or b""
    files.write_file(META_FILE, content.replace(b"version=1", b"version=2"))
    with pytest.raises(StorageError, match="version=2"):
        start(files)


def test_deleting_a_log_while_it_is_read_and_synced() -> None:
    files = MemoryFileSystem()
    manager = start(files, A)
    log = log_of(manager, A)
    append(log, batch_of(2))
    held = log.read(0, max_bytes=10**6, up_to=2, minimum_one=True)
    assert held is not None
    before = held.read()
    batch = manager.start_sync()
    assert batch is not None
    manager.delete_log(A)
    manager.delete_log(A)
    batch.run()  # its directory is gone
    assert manager.finish_sync(batch) == []
    assert manager.get(A) is None
    assert "a-0" not in files.list("")
    assert held.read() == before
    with pytest.raises(ApiError):
        append(log, batch_of())


def test_a_directory_that_cannot_be_removed_is_logged_once_and_tried_again() -> None:
    files, journal = StubbornFiles(), RecordingJournal()
    manager = start(files, A, journal=journal)
    append(log_of(manager, A), batch_of(2))
    commit(manager)
    files.stubborn = True
    assert manager.delete_log(A)  # nothing has the name any more
    for tick in range(4):
        manager.tick(NOW_MS + tick * RETRY_INTERVAL_MS)
    assert (files.attempts, len(journal.named("directory_not_removed"))) == (4, 1)
    files.stubborn = False
    manager.tick(NOW_MS + 4 * RETRY_INTERVAL_MS)
    assert not [name for name in files.list("") if name.endswith("-delete")]


def test_a_new_topic_of_the_same_name_starts_empty() -> None:
    files = MemoryFileSystem()
    manager = start(files, A)
    append(log_of(manager, A), batch_of(5))
    commit(manager)
    manager.write_checkpoints()
    manager.delete_log(A)
    log = manager.open_log(PartitionSpec(A, OTHER_ID, LogConfig()), NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert append(log, batch_of()) == 0


def test_the_directory_of_an_earlier_topic_is_set_aside() -> None:
    """Metadata were restored, or the deletion was lost: old data never appear under a new topic id."""
    files, journal = MemoryFileSystem(), RecordingJournal()
    manager = start(files, A)
    append(log_of(manager, A), batch_of(5))
    manager.close(NOW_MS)
    manager = start(files, A, topic_id=OTHER_ID, journal=journal)
    assert log_of(manager, A).log_end_offset == 0
    stray = [name for name in files.list("") if name.endswith("-stray")]
    assert stray == [f"a-0.{ID.hex()}-stray"]
    assert journal.named("stray_directory_set_aside")


def test_unknown_directories_are_reported_and_kept() -> None:
    files, journal = MemoryFileSystem(), RecordingJournal()
    manager = start(files, A, B)
    append(log_of(manager, B), batch_of())
    manager.close(NOW_MS)
    manager = start(files, A, journal=journal)
    assert journal.named("unknown_directory_left_alone") == [{"directory": "b.c-d-11"}]
    assert files.list("b.c-d-11")
    # The directory belongs to the topic. It is opened as after a crash, because it is not known to be closed cleanly.
    log = manager.open_log(PartitionSpec(B, ID, LogConfig()), NOW_MS)
    assert log.log_end_offset == 1


def test_an_interrupted_deletion_is_finished() -> None:
    files = MemoryFileSystem()
    files.make_directory(f"a-0.{ID.hex()}-delete")
    files.open(f"a-0.{ID.hex()}-delete/{0:020d}.log", create=True)
    start(files)
    assert not [name for name in files.list("") if name.endswith("-delete")]


def test_a_damaged_partition_does_not_stop_the_others_and_stays_in_doubt() -> None:
    files, journal = MemoryFileSystem(), RecordingJournal()
    manager = start(files, A, B)
    for partition in (A, B):
        append(log_of(manager, partition), batch_of(4))
    commit(manager)
    manager.write_checkpoints()
    path = f"a-0/{0:020d}.log"
    content = bytearray(files.read_file(path) or b"")
    content[70] ^= 1
    files.write_file(path, bytes(content))
    for _ in range(2):
        manager = start(files, A, B, journal=journal)
        assert list(manager.failed) == [A]
        assert manager.get(A) is None
        assert log_of(manager, B).log_end_offset == 4
        manager.close(NOW_MS)
        assert CLEAN_FILE not in files.list("")
    assert len(journal.named("partition_not_served")) == 2
    manager.delete_log(A)
    assert not manager.failed


def test_a_damaged_log_is_kept_beside_an_empty_one_and_only_the_newest_is_kept() -> None:
    files = MemoryFileSystem()
    path = f"a-0/{0:020d}.log"
    for number in range(2):
        manager = start(files, A)
        append(log_of(manager, A), batch_of(4 + number))
        commit(manager)
        manager.write_checkpoints()
        content = bytearray(files.read_file(path) or b"")
        content[70] ^= 1
        files.write_file(path, bytes(content))
        manager = start(files, A)
        assert list(manager.failed) == [A]
        log = manager.set_aside(PartitionSpec(A, ID, LogConfig()), NOW_MS)
        assert manager.get(A) is log
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 0, 0)
        assert not manager.failed
        assert files.read_file(f"a-0.{ID.hex()}-damaged/{0:020d}.log") == bytes(content)
        append(log, batch_of(1))
        commit(manager)
        manager.delete_log(A)


def test_retention_runs_when_it_is_due() -> None:
    files = MemoryFileSystem()
    manager = start(files, A, config=LogConfig(segment_bytes=500, retention_ms=1000))
    log = log_of(manager, A)
    for _ in range(6):
        append(log, batch_of(1, size=150))
    log.advance_high_watermark(6)
    assert manager.upkeep.next_deadline_ms == NOW_MS
    manager.tick(NOW_MS)
    assert log.log_start_offset == 0
    due = manager.upkeep.next_deadline_ms
    assert due is not None
    manager.tick(NOW_MS + RETENTION_INTERVAL_MS)
    assert log.log_start_offset == 6
    assert [name for name in files.list("a-0") if name.endswith(".log")] == [f"{6:020d}.log"]
    manager.close(NOW_MS)
    assert log_of(start(files, A), A).log_start_offset == 6


def test_upkeep_of_many_logs_is_spread_out() -> None:
    many = [TopicPartition("many", number) for number in range(2 * UPKEEP_AT_ONCE + 5)]
    manager = start(MemoryFileSystem(), *many, config=LogConfig(retention_ms=1000))
    for partition in many:
        append(log_of(manager, partition), batch_of())
        log_of(manager, partition).advance_high_watermark(1)
    now_ms = NOW_MS + RETENTION_INTERVAL_MS
    done = []
    for _ in range(3):
        manager.tick(now_ms)
        done.append(sum(log.log_start_offset for log in manager.logs.values()))
        if len(done) == 1:
            manager.delete_log(many[-1])  # it is deleted before the sync reaches it
        due_ms = manager.upkeep.next_deadline_ms
        assert due_ms is not None
        now_ms = due_ms
    assert done == [UPKEEP_AT_ONCE, 2 * UPKEEP_AT_ONCE, 2 * UPKEEP_AT_ONCE + 4]
    manager.tick(now_ms)
    assert manager.upkeep.next_deadline_ms is not None
    assert manager.upkeep.next_deadline_ms > NOW_MS + RETENTION_INTERVAL_MS + 10_000


def test_a_deleted_prefix_stays_deleted_after_a_crash() -> None:
    files = MemoryFileSystem()
    manager = start(files, A)
    append(log_of(manager, A), batch_of(3))
    append(log_of(manager, A), batch_of(3))
    commit(manager)
    log_of(manager, A).advance_high_watermark(6)
    log_of(manager, A).advance_log_start_offset(4)
    manager.write_checkpoints()
    assert log_of(start(files, A), A).log_start_offset == 4


def test_a_manager_that_did_not_finish_loading_leaves_no_mark() -> None:
    files = MemoryFileSystem()
    start(files, A).close(NOW_MS)
    LogManager.open(files, cluster_id="c1", node_id=1, journal=RecordingJournal()).close(NOW_MS)
    assert CLEAN_FILE not in files.list("")


def test_long_names_fit_into_the_file_system(tmp_path: Path) -> None:
    files = OsFileSystem(tmp_path)
    partition = TopicPartition("t" * 240, 12345)
    manager = start(files, partition)
    append(log_of(manager, partition), batch_of())
    manager.delete_log(partition)
    assert not [name for name in files.list("") if name.startswith("t")]
