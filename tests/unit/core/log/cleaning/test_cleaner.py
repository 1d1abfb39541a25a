"""Changes of a log between the steps of a round of cleaning."""

from __future__ import annotations

import errno

import pytest

from headrace.core.log import (
    LogCleaner,
    LogConfig,
    LogManager,
    PartitionLog,
    PartitionSpec,
    Rewriting,
)
from headrace.core.log.index.expiry_index import EXPIRY_INDEX
from headrace.records.builder import RecordFields, build_batch
from headrace.records.expiry import UNKNOWN
from tests.fixtures.compaction import latest, put, settle
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.logs import (
    DIRECTORY,
    NOW_MS,
    PARTITION,
    RecordingJournal,
    append,
    records_of,
)

CONFIG = LogConfig(compacts=True, retention_ms=-1, min_cleanable_dirty_ratio=0.0, segment_bytes=400)


class Harness:
    """A log with several groups of segments, and a round of cleaning."""

    def __init__(self) -> None:
        self.files = CrashFileSystem()
        self.journal = RecordingJournal()
        self.start()
        for number in range(20):
            put(self.log, (b"a", b"%d" % number), (b"b%d" % (number % 2), b"v"))
        self.cleaner.tick(NOW_MS)

    def start(self) -> None:
        self.manager = LogManager.open(self.files, cluster_id="c", node_id=1, journal=self.journal)
        self.cleaner = LogCleaner(self.manager, self.files, self.journal)
        self.manager.load([PartitionSpec(PARTITION, b"\1" * 16, CONFIG)], NOW_MS)

    @property
    def log(self) -> PartitionLog:
        log = self.manager.get(PARTITION)
        assert log is not None
        return log

    def step(self) -> tuple[Rewriting, OSError | None]:
        task = self.cleaner.start()
        assert task is not None
        try:
            task.run()
        except OSError as error:
            return task, error
        return task, None

    def step_until_ready(self) -> Rewriting:
        while True:
            task, error = self.step()
            assert error is None
            if task.replacement is not None:
                return task
            self.cleaner.finish(task, None, NOW_MS)

    @property
    def unnamed(self) -> list[str]:
        return [name for name in self.files.list(DIRECTORY) if name.endswith((".swap", ".cleaned"))]


@pytest.mark.parametrize("kind", ["rename", "sync_directory"])
def test_a_full_table_of_files_between_removal_and_name_puts_the_name_off(kind: str) -> None:
    harness = Harness()
    task = harness.step_until_ready()
    before = latest(harness.log)
    harness.cleaner.finish(task, None, NOW_MS)
    harness.files.fault = lambda operation, _path: errno.EMFILE if operation == kind else None
    task, error = harness.step()
    assert error is not None
    harness.cleaner.finish(task, error, NOW_MS)
    assert harness.cleaner.start() is None  # it does not try again at once
    assert harness.unnamed  # it holds the only copy
    assert latest(harness.log) == before
    harness.files.fault = None
    at = harness.cleaner.next_deadline_ms
    assert at is not None
    harness.cleaner.tick(at)
    while harness.cleaner.due:
        task, error = harness.step()
        assert error is None
        harness.cleaner.finish(task, None, at)
    assert not harness.unnamed
    assert latest(harness.log) == before
    harness.start()
    assert latest(harness.log) == before


@pytest.mark.parametrize("kind", ["rename", "sync_directory"])
def test_an_error_of_the_disk_between_removal_and_name_ends_the_service(kind: str) -> None:
    harness = Harness()
    task = harness.step_until_ready()
    before = latest(harness.log)
    harness.cleaner.finish(task, None, NOW_MS)
    harness.files.fault = lambda operation, _path: errno.EIO if operation == kind else None
    task, error = harness.step()
    assert error is not None
    with pytest.raises(OSError, match="EIO"):  # at any other moment it would end the round only
        harness.cleaner.finish(task, error, NOW_MS)
    harness.files.fault = None
    assert harness.unnamed  # it holds the only copy
    harness.start()
    assert latest(harness.log) == before


def test_a_full_table_of_files_before_the_removal_ends_the_round() -> None:
    harness = Harness()
    harness.files.fault = lambda operation, _path: errno.EMFILE if operation == "rename" else None
    while True:
        task, error = harness.step()
        harness.cleaner.finish(task, error, NOW_MS)
        if error is not None:
            break
    assert not harness.unnamed
    assert harness.manager.failure is None
    assert latest(harness.log)[b"a"] == b"19"


def test_retention_drops_a_compacted_segment_that_has_no_final_name_yet() -> None:
    harness = Harness()
    task = harness.step_until_ready()
    assert harness.unnamed == [f"{0:020d}.log.{harness.log.owner}.swap"]
    log = harness.log
    log.advance_log_start_offset(log.segments.all[1].base_offset)
    harness.manager.delete_below_start([log], NOW_MS)
    harness.cleaner.finish(task, None, NOW_MS)
    assert not harness.unnamed
    start_offset, found = log.log_start_offset, latest(log)
    harness.start()
    assert (harness.log.log_start_offset, latest(harness.log)) == (start_offset, found)


def test_no_round_begins_before_the_files_of_the_last_one_are_removed() -> None:
    """A `.swap` file that is left after the next round would restore, at a start, the records that round removed."""
    harness = Harness()
    task = harness.step_until_ready()
    log = harness.log
    log.advance_log_start_offset(log.segments.all[1].base_offset)
    harness.manager.delete_below_start([log], NOW_MS)
    harness.files.fault = lambda operation, _path: errno.EACCES if operation == "remove" else None
    harness.cleaner.finish(task, None, NOW_MS)
    harness.cleaner.tick(NOW_MS)
    assert harness.unnamed
    assert harness.cleaner.start() is None
    harness.files.fault = None
    at = harness.cleaner.next_deadline_ms
    assert at is not None
    harness.cleaner.tick(at)
    assert not harness.unnamed
    assert harness.cleaner.start() is not None


def test_an_error_of_the_disk_while_files_are_removed_ends_the_service() -> None:
    harness = Harness()
    task = harness.step_until_ready()
    log = harness.log
    log.advance_log_start_offset(log.segments.all[1].base_offset)
    harness.manager.delete_below_start([log], NOW_MS)
    harness.files.fault = lambda operation, _path: errno.EIO if operation == "remove" else None
    with pytest.raises(OSError, match="EIO"):
        harness.cleaner.finish(task, None, NOW_MS)


def test_retention_between_removal_and_rename_loses_no_retained_record() -> None:
    harness = Harness()
    first = harness.step_until_ready()
    harness.cleaner.finish(first, None, NOW_MS)
    log = harness.log
    log.advance_log_start_offset(log.segments.all[1].base_offset)
    harness.manager.delete_below_start([log], NOW_MS)
    task, error = harness.step()
    harness.cleaner.finish(task, error, NOW_MS)
    assert not harness.unnamed
    found = latest(log)
    assert found[b"a"] == b"19"
    harness.start()
    assert latest(harness.log) == found


def test_rounds_remove_expired_records_and_read_segments_of_unknown_expiry() -> None:
    files, journal = CrashFileSystem(), RecordingJournal()
    manager = LogManager.open(files, cluster_id="c", node_id=1, journal=journal)
    cleaner = LogCleaner(manager, files, journal)
    config = LogConfig(expires=True, retention_ms=-1, segment_bytes=200)
    manager.load([PartitionSpec(PARTITION, b"\1" * 16, config)], NOW_MS)
    log = manager.get(PARTITION)
    assert log is not None
    kept = (b"k", b"kept", (), NOW_MS)
    for number in range(4):
        short = (b"k", b"short", (("headrace.ttl-ms", b"5"),), NOW_MS)
        append(log, build_batch([short, kept] if number else [kept]))
        settle(log)
        log.roll(NOW_MS)

    def clean(now_ms: int) -> None:
        cleaner.tick(now_ms)
        while (task := cleaner.start()) is not None:
            task.run()
            cleaner.finish(task, None, now_ms)

    clean(NOW_MS + 5)
    assert [record.value for record in records_of(log)].count(b"short") == 3  # not worth it yet
    clean(NOW_MS + 3_600_000)
    assert [record.offset for record in records_of(log)] == [0, 2, 4, 6]
    (report,) = journal.named("expired_records_removed")
    assert (report["records"], report["records_kept"]) == (6, 3)
    segment = log.segments.all[0]
    files.remove(segment.sidecar_path(EXPIRY_INDEX))
    segment.expiries._described = -1, UNKNOWN, 0
    assert segment.expiries.summary(segment.size).earliest == 0
    clean(NOW_MS + 3_700_000)
    assert segment.expiries.summary(segment.size).earliest > NOW_MS
    assert files.read_file(segment.sidecar_path(EXPIRY_INDEX)) is not None
    assert len(journal.named("expired_records_removed")) == 1


def test_gradual_expiry_rewrites_a_segment_at_growing_intervals() -> None:
    files, journal = CrashFileSystem(), RecordingJournal()
    manager = LogManager.open(files, cluster_id="c", node_id=1, journal=journal)
    cleaner = LogCleaner(manager, files, journal)
    config = LogConfig(expires=True, retention_ms=-1)
    manager.load([PartitionSpec(PARTITION, b"\1" * 16, config)], NOW_MS)
    log = manager.get(PARTITION)
    assert log is not None
    hour_ms = 3_600_000
    records: list[RecordFields] = [(b"k", b"for ever", (), NOW_MS)]
    for number in range(300):
        ttl_ms = b"%d" % (number * hour_ms // 10)
        records.append((b"k", b"v", (("headrace.ttl-ms", ttl_ms),), NOW_MS))
    append(log, build_batch(records))
    settle(log)
    log.roll(NOW_MS)
    rounds: list[int] = []
    for tenth in range(300):
        now_ms = NOW_MS + tenth * hour_ms // 10
        cleaner.tick(now_ms)
        while (task := cleaner.start()) is not None:
            task.run()
            cleaner.finish(task, None, now_ms)
        if len(journal.named("expired_records_removed")) > len(rounds):
            rounds.append(tenth)
    assert rounds == [10, 20, 30, 45, 68, 102, 153, 230]
