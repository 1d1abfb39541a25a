"""Truncation of a log's end: what remains, what is refused, and what happens at the same time."""

from __future__ import annotations

import errno

import pytest

from headrace.core.log import LogConfig, LogManager, PartitionLog, PartitionSpec
from headrace.core.log.cleaning.cleaner import CLEANER_FILE, LogCleaner
from headrace.core.log.files.offset_gaps import GAPS_FILE
from headrace.core.log.index.leader_epochs import EPOCHS_FILE
from headrace.core.log.upkeep.log_offsets import RECOVERY_FILE
from headrace.errors import ApiError, OffsetOutOfRangeError, StorageError
from headrace.records.expiry import UNKNOWN
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.os_files import OsFileSystem
from headrace.storage.segment_files import ArraySegment, StorageFileSystem
from tests.fixtures.compaction import keyed, latest, put, run_round
from tests.fixtures.crash_files import CrashFileSystem, PowerCut
from tests.fixtures.logs import (
    DIRECTORY,
    NOW_MS,
    PARTITION,
    RecordingJournal,
    append,
    batch_of,
    open_log,
    raw_batches,
    sync,
)
from tests.fixtures.transactions import begin, end

SMALL = LogConfig(segment_bytes=200, index_interval_bytes=1)


def follower(files, config: LogConfig | None = None, *, high_watermark: int = 0) -> PartitionLog:
    """Return a log whose records are not committed."""
    return open_log(files, config, high_watermark=high_watermark)


def filled(files, config: LogConfig | None = None, *, batches: int = 6) -> PartitionLog:
    log = follower(files, config)
    for epoch in range(batches):
        append(log, batch_of(3, tag=str(epoch)), leader_epoch=epoch)
    return log


def names(files) -> list[str]:
    return [name for name in files.list(DIRECTORY) if name.endswith(".log")]


@pytest.mark.parametrize("config", [LogConfig(), SMALL], ids=["one segment", "many"])
@pytest.mark.parametrize("offset", range(19))
def test_a_truncated_log_equals_one_that_never_had_more(config: LogConfig, offset: int) -> None:
    files, whole = MemoryFileSystem(), offset // 3
    log = filled(files, config)
    expected = filled(MemoryFileSystem(), config, batches=whole)
    assert log.truncated_end(offset) == 3 * whole
    assert log.truncate_to(offset, now_ms=NOW_MS) == log.log_end_offset == 3 * whole
    for number in range(whole, 8):
        for each in (log, expected):
            append(
                each, batch_of(2, tag=f"again {number}", timestamp=NOW_MS + number), leader_epoch=9
            )
    assert raw_batches(log) == raw_batches(expected)
    assert log.epochs.entries == expected.epochs.entries
    assert log.offset_of_max_timestamp() == expected.offset_of_max_timestamp()
    sync(log)
    again = open_log(files, config, clean=False, recovery_point=log.synced_offset)
    assert raw_batches(again) == raw_batches(expected)
    assert again.epochs.entries == expected.epochs.entries


def test_nothing_below_the_high_watermark_or_the_log_start_is_removed() -> None:
    log = filled(MemoryFileSystem())
    log.advance_high_watermark(9)
    log.advance_log_start_offset(4)
    before = raw_batches(log)
    for offset, reason in ((3, "below the log start offset 4"), (8, "below the high watermark 9")):
        for attempt in (log.truncated_end, lambda end: log.truncate_to(end, now_ms=NOW_MS)):
            with pytest.raises(OffsetOutOfRangeError, match=reason):
                attempt(offset)
    assert (raw_batches(log), log.log_end_offset) == (before, 18)
    assert log.truncate_to(11, now_ms=NOW_MS) == 9


def test_a_truncation_at_the_end_forgets_leader_epochs_without_a_batch() -> None:
    log = filled(MemoryFileSystem(), batches=2)
    log.become_leader(7)
    assert log.truncate_to(100, now_ms=NOW_MS) == 6
    assert log.epochs.entries == [(0, 0), (1, 3)]


def test_a_leader_epoch_without_a_batch_is_forgotten_by_a_restart() -> None:
    files = MemoryFileSystem()
    log = filled(files, batches=2)
    log.become_leader(7)
    log.roll(NOW_MS)
    again = follower(files)
    append(again, batch_of(), leader_epoch=5)
    again.roll(NOW_MS)
    files.remove(f"{DIRECTORY}/{EPOCHS_FILE}")
    assert follower(files).epochs.entries == again.epochs.entries == [(0, 0), (1, 3), (5, 6)]


def test_a_transaction_is_open_again_without_its_marker() -> None:
    for config in (None, SMALL):
        log = follower(MemoryFileSystem(), config)
        begin(log, 1)
        begin(log, 2)
        end(log, 1, committed=False)
        end(log, 2, committed=True)
        log.truncate_to(3, now_ms=NOW_MS)
        transactions = log.producers.transactions
        assert (transactions.open, [entry.producer_id for entry in transactions.aborted]) == (
            {2: 1},
            [1],
        )
        log.truncate_to(2, now_ms=NOW_MS)
        transactions = log.producers.transactions
        assert (transactions.open, list(transactions.aborted)) == ({1: 0, 2: 1}, [])
        log.advance_high_watermark(2)
        assert log.last_stable_offset == 0


def test_aborted_transactions_before_the_active_segment_are_listed_once() -> None:
    files = MemoryFileSystem()
    log = follower(files)
    begin(log, 1)
    end(log, 1, committed=False)
    log.roll(NOW_MS)
    append(log, batch_of())
    log.truncate_to(2, now_ms=NOW_MS)
    append(log, batch_of())
    log.roll(NOW_MS)
    log.close(NOW_MS)
    assert len(list(follower(files).producers.transactions.aborted)) == 1


def test_uncommitted_markers_are_known_after_a_restart() -> None:
    files = MemoryFileSystem()
    log = follower(files)
    begin(log, 1)
    append(log, batch_of())
    end(log, 1, committed=True)
    log.close(NOW_MS)  # with a snapshot above the high watermark
    assert follower(files, high_watermark=2).last_stable_offset == 0
    assert follower(files, high_watermark=3).last_stable_offset == 3


def test_what_lies_below_the_log_start_is_kept_until_that_offset_is_durable() -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    begin(log, 1)
    end(log, 1, committed=False)
    append(log, batch_of(), leader_epoch=1)
    log.advance_high_watermark(3)
    log.advance_log_start_offset(3)
    log.roll(NOW_MS)  # writes caches
    again = open_log(files, clean=False, log_start_offset=0)
    assert [entry.producer_id for entry in again.producers.transactions.aborted] == [1]
    assert again.epochs.entries == [(0, 0), (1, 2)]
    log.purge()
    assert list(log.producers.transactions.aborted) == []
    assert log.epochs.entries == [(1, 3)]


def test_a_sync_in_flight_counts_up_to_the_new_end_only() -> None:
    log = filled(MemoryFileSystem())
    task = log.start_sync()
    assert task is not None
    log.truncate_to(6, now_ms=NOW_MS)
    append(log, batch_of(5), leader_epoch=9)
    task.run()
    log.finish_sync(task)
    assert (log.synced_offset, log.log_end_offset) == (6, 11)
    sync(log)
    assert log.synced_offset == 11


def test_a_sync_that_failed_before_a_truncation_is_repeated() -> None:
    files = CrashFileSystem()
    log = filled(files, SMALL)
    task = log.start_sync()
    assert task is not None
    log.truncate_to(6, now_ms=NOW_MS)
    log.put_back(task)
    sync(log)
    assert log.synced_offset == 6
    for seed in range(10):
        again = open_log(files.after_power_cut(seed), SMALL, clean=False, recovery_point=6)
        assert raw_batches(again) == raw_batches(log)


@pytest.mark.parametrize("config", [LogConfig(), SMALL], ids=["one segment", "many"])
def test_ranges_below_the_new_end_stay_readable(tmp_path, config: LogConfig) -> None:
    log = filled(OsFileSystem(tmp_path), config)
    expected = raw_batches(log)
    ranges = {
        offset: log.read(offset, max_bytes=1, up_to=18, minimum_one=True) for offset in expected
    }
    log.truncate_to(9, now_ms=NOW_MS)
    for _ in range(9):
        append(log, batch_of(2, size=20), leader_epoch=9)
    for offset in (0, 3, 6):
        found = ranges[offset]
        assert found is not None
        assert found.read() == expected[offset]


def test_a_round_of_compaction_goes_on() -> None:
    config = LogConfig(segment_bytes=300, compacts=True, min_cleanable_dirty_ratio=0.0)
    files = MemoryFileSystem()
    manager, log = managed(files, config)
    cleaner = LogCleaner(manager, files, RecordingJournal())
    for number in range(12):
        put(log, (b"a", b"%d" % number), (b"b", b"v"))
    committed = log.high_watermark
    for number in range(4):
        append(log, keyed((b"a", b"lost"), (b"c", b"%d" % number)))
    cleaner.tick(NOW_MS)
    task = cleaner.start()
    assert task is not None
    task.run()
    manager.truncate(log, committed, NOW_MS)
    cleaner.finish(task, None, NOW_MS)
    while (task := cleaner.start()) is not None:
        task.run()
        cleaner.finish(task, None, NOW_MS)
    assert latest(log) == {b"a": b"11", b"b": b"v"}
    assert log.log_end_offset == committed
    put(log, (b"b", b"w"))
    manager.close(NOW_MS)
    _, again = managed(files, config)
    assert latest(again) == {b"a": b"11", b"b": b"w"}


class OnlyReadAfterRoll(ArraySegment):
    """A storage that takes the documented contract at its word."""

    __slots__ = ("rolled",)

    def __init__(self) -> None:
        super().__init__()
        self.rolled = False

    def append(self, buffers) -> None:
        assert not self.rolled
        super().append(buffers)

    def roll(self) -> OnlyReadAfterRoll:
        self.rolled = True
        return OnlyReadAfterRoll()


@pytest.mark.parametrize("offset", range(0, 19, 3))
def test_a_sealed_segment_takes_no_appends_again(offset: int) -> None:
    log = filled(StorageFileSystem("ours", OnlyReadAfterRoll), SMALL)
    expected = {base: batch for base, batch in raw_batches(log).items() if base < offset}
    log.truncate_to(offset, now_ms=NOW_MS)
    base_offset = append(log, batch_of(), leader_epoch=9)
    assert base_offset == offset
    assert list(raw_batches(log)) == [*expected, offset]


def test_a_log_without_batches_continues_at_its_start() -> None:
    files = MemoryFileSystem()
    manager, log = managed(files, SMALL)
    for number in range(6):
        append(log, batch_of(3, producer_id=number, producer_epoch=0, base_sequence=0))
    sync(log)
    log.advance_high_watermark(7)
    log.advance_log_start_offset(7)  # inside a batch
    assert manager.truncate(log, 8, NOW_MS) == 7
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (7, 7, 0)
    assert [name for name in files.list(DIRECTORY) if name.endswith(".log")] == []
    manager.close(NOW_MS)
    _, log = managed(files, SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
    assert log.producers.get(1) is not None
    assert append(log, batch_of()) == 7


def test_a_log_without_batches_keeps_no_aborted_transactions() -> None:
    files = MemoryFileSystem()
    manager, log = managed(files, LogConfig())
    begin(log, 1)
    end(log, 1, committed=False)
    append(log, batch_of(4))
    sync(log)
    log.advance_high_watermark(4)
    log.advance_log_start_offset(4)
    log.maybe_write_caches()
    assert manager.truncate(log, 5, NOW_MS) == 4
    manager.close(NOW_MS)
    _, again = managed(files, LogConfig())
    assert list(again.producers.transactions.aborted) == []
    assert again.log_end_offset == 4


def test_expiry_times_of_removed_batches_are_forgotten() -> None:
    config = LogConfig(expires=True, index_interval_bytes=1)
    log = follower(MemoryFileSystem(), config)
    append(log, batch_of())
    segment = log.segments.active
    before = segment.expiries.summary(segment.size)
    size = segment.size
    append(log, batch_of())
    segment.expiries.write()
    log.truncate_to(1, now_ms=NOW_MS)
    assert segment.size == size
    assert segment.expiries.summary(size) == before != UNKNOWN
    append(log, batch_of())
    assert segment.expiries.summary(segment.size) == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("config", [LogConfig(), SMALL], ids=["one segment", "many"])
def test_a_truncation_that_fails_is_completed_after_a_start(config: LogConfig, code: int) -> None:
    failures = 0
    while True:
        files = CrashFileSystem()
        manager, log = managed(files, config)
        for epoch in range(6):
            append(log, batch_of(3, tag=str(epoch)), leader_epoch=epoch)
        sync(log)
        manager.write_checkpoints()
        before = raw_batches(log)
        expected = dict(list(before.items())[:2])
        fuse = failures

        def fail(_kind: str, _path: str) -> int | None:
            nonlocal fuse
            fuse -= 1
            return code if fuse < 0 else None

        files.fault = fail
        try:
            assert manager.truncate(log, 6, NOW_MS) == 6
        except OSError:
            failures += 1
        else:
            break
        finally:
            files.fault = None
        if log.failure is None:
            assert raw_batches(log) == before
            assert manager.truncate(log, 6, NOW_MS) == 6
            assert raw_batches(log) == expected
            continue
        with pytest.raises(ApiError):
            append(log, batch_of(), leader_epoch=9)
        for image in (files, files.after_power_cut(failures)):
            again, log = managed(image, config)
            assert raw_batches(log).items() >= expected.items()
            assert again.truncate(log, 6, NOW_MS) == 6
            assert raw_batches(log) == expected
    assert failures > 3


def test_a_truncated_log_knows_producers_whose_batches_are_deleted() -> None:
    log = follower(MemoryFileSystem(), SMALL)
    for sequence in range(4):
        append(log, batch_of(1, producer_id=5, producer_epoch=0, base_sequence=sequence))
    while len(log.segments) < 5:
        append(log, batch_of(1))
    append(log, batch_of(1, producer_id=5, producer_epoch=0, base_sequence=4))
    log.advance_high_watermark(6)
    log.advance_log_start_offset(6)
    log.delete_old_segments(NOW_MS)
    log.purge()
    assert log.segments.start_offset > 3
    log.truncate_to(7, now_ms=NOW_MS)
    entry = log.producers.get(5)
    assert entry is not None
    assert [batch.last_sequence for batch in entry.batches] == [0, 1, 2, 3]
    append(log, batch_of(1, producer_id=5, producer_epoch=0, base_sequence=4))
    with pytest.raises(ApiError):
        append(log, batch_of(1, producer_id=5, producer_epoch=0, base_sequence=7))


def test_a_truncated_log_knows_deleted_batches_of_a_producer_whose_marker_it_has() -> None:
    files = MemoryFileSystem()
    log = follower(files)
    begin(log, 1)
    log.roll(NOW_MS)
    end(log, 1, committed=True)
    append(log, batch_of())
    for name in files.list(DIRECTORY):
        if name.endswith(".snapshot"):
            files.remove(f"{DIRECTORY}/{name}")  # a power cut has damaged it
    log.advance_high_watermark(2)
    log.advance_log_start_offset(1)
    log.delete_old_segments(NOW_MS)
    log.purge()
    files.remove(f"{DIRECTORY}/{3:020d}.snapshot")
    log.truncate_to(2, now_ms=NOW_MS)
    begin(log, 1, sequence=1)


@pytest.mark.parametrize("offset", [0, 6])
def test_a_start_after_a_kill_makes_durable_what_it_has_found(offset: int) -> None:
    for fuse in range(1, 40):
        files = CrashFileSystem()
        manager, log = managed(files, SMALL)
        for _ in range(6):
            append(log, batch_of(3))
        sync(log)
        files.fuse = files.operations + fuse
        try:
            manager.truncate(log, offset, NOW_MS)
        except PowerCut:
            files.fuse = None  # the process was killed, and the page cache is still there
        else:
            break
        _, log = managed(files, SMALL)
        found = raw_batches(log)
        for seed in range(8):
            _, again = managed(files.after_power_cut(seed), SMALL)
            assert raw_batches(again) == found
    assert fuse > 5


def test_the_recovery_point_is_lowered_before_anything_is_removed() -> None:
    files = CrashFileSystem()
    manager, log = managed(files, SMALL)
    for _ in range(6):
        append(log, batch_of(3))
    sync(log)
    log.advance_high_watermark(2)
    log.advance_log_start_offset(2)
    manager.write_checkpoints()
    seen: list[tuple[str, str]] = []
    files.fault = lambda kind, path: seen.append((kind, path.rpartition("/")[2]))
    manager.truncate(log, 10, NOW_MS)
    changes = [kind for kind, _ in seen]
    assert ("write_file", RECOVERY_FILE) in seen
    assert seen.index(("write_file", RECOVERY_FILE)) < changes.index("remove")
    assert seen.index(("write_file", EPOCHS_FILE)) < changes.index("remove")
    assert changes.index("remove") < changes.index("truncate")
    removed = [name for kind, name in seen if kind == "remove" and name.endswith(".log")]
    assert removed == sorted(removed, reverse=True)
    key = manager.checkpoint_key(PARTITION)
    assert manager.recovery_point(key) == log.log_end_offset == 9
    manager.write_checkpoints()
    assert manager.recovery_point(key) == 9


def test_the_clean_offset_is_lowered() -> None:
    config = LogConfig(segment_bytes=300, compacts=True, min_cleanable_dirty_ratio=0.0)
    files = MemoryFileSystem()
    manager, log = managed(files, config)
    cleaner = LogCleaner(manager, files, RecordingJournal())
    for number in range(12):
        put(log, (b"a", b"%d" % number))
    cleaner.tick(NOW_MS)
    while (task := cleaner.start()) is not None:
        task.run()
        cleaner.finish(task, None, NOW_MS)
    clean = cleaner.clean_offset(log)
    assert clean > 3
    manager.close(NOW_MS)
    files.remove("replication-offset-checkpoint")
    manager, log = managed(files, config)  # the high watermark is lost
    cleaner = LogCleaner(manager, files, RecordingJournal())
    assert log.high_watermark == 0
    remaining = manager.truncate(log, 3, NOW_MS)
    assert cleaner.clean_offset(log) == remaining < clean
    assert f" {remaining}\n".encode() in (files.read_file(CLEANER_FILE) or b"")


def test_a_compacted_segment_that_is_cut_may_become_the_last_one() -> None:
    config = LogConfig(segment_bytes=2000, compacts=True, min_cleanable_dirty_ratio=0.0)
    files = MemoryFileSystem()
    log = open_log(files, config)
    for number in range(90):
        put(log, (b"a" if number % 5 else b"only once %d" % number, b"v"))
    run_round(files, log)
    log.close(NOW_MS)
    log = open_log(files, config, high_watermark=0)  # the high watermark is lost
    expected = {base: batch for base, batch in raw_batches(log).items() if base < 12}
    assert list(expected) == [0, 5, 10]
    assert log.truncate_to(12, now_ms=NOW_MS) == 11
    files.remove(f"{DIRECTORY}/{11:020d}.log")  # neither reached the disk
    files.remove(f"{DIRECTORY}/{0:020d}.index")
    assert raw_batches(open_log(files, config, clean=False, recovery_point=11)) == expected
    files.remove(f"{DIRECTORY}/{0:020d}.index")
    files.remove(f"{DIRECTORY}/{GAPS_FILE}")
    with pytest.raises(StorageError, match="base offset 5 where 1 should follow"):
        open_log(files, config, clean=False, recovery_point=11)


def test_a_follower_out_of_range_begins_an_empty_log() -> None:
    for offset in (0, 5, 18, 40):
        files = CrashFileSystem()
        manager, log = managed(files, SMALL)
        for _ in range(6):
            append(log, batch_of(3))
        sync(log)
        manager.write_checkpoints()
        spec = spec_of(SMALL)
        held = log.read(0, max_bytes=1, up_to=18, minimum_one=True)
        assert held is not None
        expected = held.read()
        batch = manager.start_sync()
        new = manager.truncate_fully_and_start_at(spec, offset, NOW_MS)
        if batch is not None:
            batch.run()
            manager.finish_sync(batch)
        assert manager.get(PARTITION) is new
        assert (new.log_start_offset, new.log_end_offset, new.high_watermark) == (offset,) * 3
        assert held.read() == expected
        manager.write_checkpoints()
        for image in (files, files.after_power_cut(offset)):
            _, again = managed(image, SMALL)
            assert (again.log_start_offset, again.log_end_offset) == (offset, offset)
        assert append(new, batch_of()) == offset


def test_a_log_that_begins_anew_at_0_keeps_its_records_over_a_restart() -> None:
    files = CrashFileSystem()
    manager, log = managed(files, SMALL)
    for _ in range(6):
        append(log, batch_of(3))
    sync(log)
    log.advance_high_watermark(18)
    log.advance_log_start_offset(6)
    manager.delete_below_start([log], NOW_MS)
    log = manager.truncate_fully_and_start_at(spec_of(SMALL), 0, NOW_MS)
    append(log, batch_of(3))
    sync(log)
    manager.write_checkpoints()
    _, again = managed(files.after_power_cut(1), SMALL)
    assert (again.log_start_offset, again.log_end_offset) == (0, 3)


def begins_anew_with(number: int, error: int) -> tuple[LogManager, OSError | None]:
    """Begin a log anew while the file system refuses one operation."""
    files = CrashFileSystem()
    manager, log = managed(files, SMALL)
    for _ in range(6):
        append(log, batch_of(3))
    sync(log)
    manager.write_checkpoints()
    left = iter(range(number))
    files.fault = lambda _kind, _path: error if next(left, None) == number - 1 else None
    try:
        manager.truncate_fully_and_start_at(spec_of(SMALL), 40, NOW_MS)
    except OSError as raised:
        files.fault = None
        return manager, raised
    files.fault = None
    return manager, None


def test_a_disk_error_while_a_log_begins_anew_takes_the_directory_out_of_service() -> None:
    refused = 0
    for number in range(1, 20):
        manager, error = begins_anew_with(number, errno.EIO)
        assert manager.failure is error
        refused += error is not None
    assert refused > 3


def test_a_log_can_begin_anew_after_a_full_disk_has_refused_that() -> None:
    refused = 0
    for number in range(1, 20):
        manager, error = begins_anew_with(number, errno.ENOSPC)
        assert manager.failure is None
        if error is not None:
            refused += 1
            assert manager.topic_id(PARTITION) == spec_of(SMALL).topic_id
            manager.truncate_fully_and_start_at(spec_of(SMALL), 40, NOW_MS)
        log = manager.get(PARTITION)
        assert log is not None
        assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert refused > 3


def test_a_power_cut_while_a_log_begins_anew_leaves_a_log_that_opens() -> None:
    for offset in (3, 40):
        for fuse in range(1, 40):
            files = CrashFileSystem()
            manager, log = managed(files, SMALL)
            for _ in range(6):
                append(log, batch_of(3))
            sync(log)
            log.advance_high_watermark(18)
            log.advance_log_start_offset(6)
            manager.delete_below_start([log], NOW_MS)
            manager.write_checkpoints()
            files.fuse = files.operations + fuse
            spec = spec_of(SMALL)
            try:
                manager.truncate_fully_and_start_at(spec, offset, NOW_MS)
            except PowerCut:
                pass
            else:
                break
            _, again = managed(files.after_power_cut(fuse), SMALL)
            assert (again.log_start_offset, again.log_end_offset) in (
                (6, 18),
                (6, 6),
                (18, 18),
                (offset, offset),
                (offset, 18),
            )
        assert fuse > 5


def spec_of(config: LogConfig) -> PartitionSpec:
    return PartitionSpec(PARTITION, b"\1" * 16, config, is_replicated=True)


def managed(files, config: LogConfig) -> tuple[LogManager, PartitionLog]:
    """Return a manager with one log, as a start makes them."""
    manager = LogManager.open(files, cluster_id="c", node_id=1, journal=RecordingJournal())
    manager.load([spec_of(config)], NOW_MS)
    log = manager.get(PARTITION)
    assert log is not None, manager.failed
    return manager, log
