from __future__ import annotations

import errno

import pytest

from headrace.core.log import LogConfig, PartitionLog
from headrace.errors import ApiError, CorruptRecordError, ErrorCode, StorageError
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.logs import (
    DIRECTORY,
    NOW_MS,
    RecordingJournal,
    append,
    batch_of,
    open_log,
    raw_batches,
    records_of,
    sync,
)

SMALL = LogConfig(segment_bytes=500, retention_ms=-1)


def names(files: MemoryFileSystem | CrashFileSystem, suffix: str) -> list[int]:
    return [int(name.split(".")[0]) for name in files.list(DIRECTORY) if name.endswith(suffix)]


def test_a_log_creates_no_file_before_the_first_batch() -> None:
    files = MemoryFileSystem()
    log = open_log(files, metadata=b"id")
    assert files.list("") == []
    assert (log.log_start_offset, log.log_end_offset, log.leader_epoch) == (0, 0, -1)
    assert log.start_sync() is None
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None
    assert log.delete_old_segments(NOW_MS) == []
    log.roll(NOW_MS)
    append(log, batch_of())
    assert files.read_file(f"{DIRECTORY}/partition.metadata") == b"id"
    assert names(files, ".log") == [0]


def test_offsets_and_epochs_are_set_and_the_rest_is_untouched() -> None:
    log = open_log(MemoryFileSystem())
    first, second = batch_of(3), batch_of(2, tag="w")
    assert append(log, first, leader_epoch=4) == 0
    assert append(log, second, leader_epoch=6) == 3
    found = raw_batches(log)
    assert list(found) == [0, 3]
    assert found[3][16:] == second[16:]
    assert found[3][:16] == (3).to_bytes(8, "big") + second[8:12] + (6).to_bytes(4, "big")
    assert log.end_offset_for_epoch(4) == (4, 3)
    with pytest.raises(ValueError, match="leader epoch 5 after 6"):
        append(log, first, leader_epoch=5)


def test_segments_roll_by_size_and_by_record_time() -> None:
    files = MemoryFileSystem()
    log = open_log(files, LogConfig(segment_bytes=1000, segment_ms=100))
    for _ in range(8):
        append(log, batch_of(1, size=200))
    assert names(files, ".log") == [0, 3, 6]
    append(log, batch_of(1, timestamp=NOW_MS + 100))
    assert len(names(files, ".log")) == 3
    append(log, batch_of(1, timestamp=NOW_MS + 101))
    assert names(files, ".log") == [0, 3, 6, 9]
    assert log.maybe_roll(NOW_MS + 101)
    assert not log.maybe_roll(NOW_MS + 10**9)  # nothing in it


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    log = open_log(MemoryFileSystem(), SMALL)
    with pytest.raises(ApiError) as caught:
        append(log, batch_of(1, size=600))
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


def test_records_beyond_up_to_are_not_returned() -> None:
    log = open_log(MemoryFileSystem())
    for _ in range(4):
        append(log, batch_of(2))

    def offsets(up_to: int) -> int:
        found = log.read(0, max_bytes=10**6, up_to=up_to, minimum_one=True)
        return 0 if found is None else len(found) // len(batch_of(2))

    assert [offsets(up_to) for up_to in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_a_group_commit_covers_the_batches_appended_before_it_began() -> None:
    log = open_log(MemoryFileSystem())
    append(log, batch_of(2))
    task = log.start_sync()
    assert task is not None
    append(log, batch_of(3))
    task.run()
    assert log.synced_offset == 0
    log.finish_sync(task)
    assert log.synced_offset == 2
    sync(log)
    assert log.synced_offset == 5
    assert log.start_sync() is None


def test_the_dirty_callback_is_called_by_the_first_append_after_a_sync() -> None:
    log = open_log(MemoryFileSystem())
    seen: list[PartitionLog] = []
    log.on_dirty = seen.append
    append(log, batch_of())
    append(log, batch_of())
    assert seen == [log]
    sync(log)
    append(log, batch_of())
    assert seen == [log, log]


def test_the_high_watermark_only_rises_and_never_passes_the_end() -> None:
    log = open_log(MemoryFileSystem())
    append(log, batch_of(5))
    assert log.advance_high_watermark(3)
    assert not log.advance_high_watermark(2)
    assert log.last_stable_offset == log.high_watermark == 3
    assert log.advance_high_watermark(99)
    assert log.high_watermark == 5


@pytest.mark.parametrize("kind", ["append", "create"])
def test_a_write_that_fails_changes_nothing(kind: str) -> None:
    files = CrashFileSystem()
    log = open_log(files, SMALL)
    sequence = 0
    for _ in range(3):
        append(log, batch_of(1, size=80, producer_id=1, producer_epoch=0, base_sequence=sequence))
        sequence += 1
    files.fault = lambda operation, path: (
        errno.ENOSPC if operation == kind and path.endswith(".log") else None
    )
    batch = batch_of(1, size=80, producer_id=1, producer_epoch=0, base_sequence=sequence)
    before = repr(log), log.size_bytes, raw_batches(log)
    with pytest.raises(OSError, match="ENOSPC"):
        append(log, batch)
    assert (repr(log), log.size_bytes, raw_batches(log)) == before
    files.fault = None  # there is space again, and the producer retries
    assert append(log, batch) == 3
    assert [record.offset for record in records_of(log)] == [0, 1, 2, 3]


def test_a_failed_log_refuses_appends() -> None:
    log = open_log(MemoryFileSystem())
    append(log, batch_of())
    log.fail(OSError(errno.EIO, "gone"))
    with pytest.raises(ApiError) as caught:
        append(log, batch_of())
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.delete_old_segments(NOW_MS) == []
    with pytest.raises(OSError, match="gone"):
        log.close(NOW_MS)


# Retention


def filled(files: MemoryFileSystem, config: LogConfig, segments: int = 4):
    log = open_log(files, config)
    for number in range(segments * 2):
        append(log, batch_of(1, size=150, timestamp=NOW_MS + number * 10))
    assert log.segment_count == segments
    log.advance_high_watermark(log.log_end_offset)
    return log


def test_retention_by_time_looks_at_the_newest_record_of_a_segment() -> None:
    files = MemoryFileSystem()
    log = filled(files, LogConfig(segment_bytes=500, retention_ms=1000))
    assert log.delete_old_segments(NOW_MS + 1010) == []
    assert log.delete_old_segments(NOW_MS + 1011) == [0]
    assert (log.log_start_offset, names(files, ".log")) == (2, [0, 2, 4, 6])
    log.purge()
    assert names(files, ".log") == [*names(files, ".index"), 6] == [2, 4, 6]


def test_a_follower_deletes_only_what_its_leader_has_deleted() -> None:
    for config in (
        LogConfig(segment_bytes=500, retention_ms=1000),
        LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=0),
    ):
        log = filled(MemoryFileSystem(), config)
        log.follows = True
        assert log.delete_old_segments(NOW_MS + 10**6) == []
        log.advance_log_start_offset(5)
        assert log.delete_old_segments(NOW_MS + 10**6) == [0, 2]
        assert log.log_start_offset == 5
        log.follows = False
        assert log.delete_old_segments(NOW_MS + 10**6)


def test_a_log_with_other_replicas_follows_until_it_is_led() -> None:
    assert open_log(MemoryFileSystem(), high_watermark=0).follows
    assert not open_log(MemoryFileSystem()).follows


def test_a_wholly_expired_log_continues_at_its_end_offset() -> None:
    files = MemoryFileSystem()
    log = filled(files, LogConfig(segment_bytes=500, retention_ms=1000))
    assert log.delete_old_segments(NOW_MS + 10**6) == [0, 2, 4, 6]
    log.purge()
    assert (log.log_start_offset, log.log_end_offset) == (8, 8)
    assert names(files, ".log") == [8]
    log.close(NOW_MS)
    assert open_log(files).log_end_offset == 8


def test_retention_by_size_keeps_at_least_that_much_and_the_active_segment() -> None:
    log = filled(
        MemoryFileSystem(), LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=900)
    )
    size = log.size_bytes // 4
    assert 2 * size < 900 < 3 * size
    assert log.delete_old_segments(NOW_MS) == [0]
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=0)
    assert log.delete_old_segments(NOW_MS) == [2, 4]


def test_retention_stops_at_the_high_watermark() -> None:
    files = MemoryFileSystem()
    log = open_log(files, LogConfig(segment_bytes=500, retention_ms=0))
    for _ in range(6):
        append(log, batch_of(1, size=150))
    log.advance_high_watermark(3)
    assert log.delete_old_segments(NOW_MS + 10**6) == [0]


def test_records_from_the_future_do_not_expire() -> None:
    config = LogConfig(retention_ms=1000, message_timestamp_after_max_ms=10**9)
    log = open_log(MemoryFileSystem(), config)
    append(log, batch_of(1, timestamp=NOW_MS + 10**9))
    log.advance_high_watermark(1)
    assert log.delete_old_segments(NOW_MS + 2000) == []


def test_only_a_few_sealed_segments_stay_open() -> None:
    log = filled(MemoryFileSystem(), LogConfig(segment_bytes=500, retention_ms=-1), segments=12)
    for offset in range(24):
        assert log.read(offset, max_bytes=1, up_to=24, minimum_one=True) is not None
        assert sum(segment.loaded for segment in log.segments) <= 4


# Opening


def written(files: MemoryFileSystem) -> None:
    log = open_log(files, SMALL)
    for number in range(10):
        append(log, batch_of(2, size=80, tag=str(number)))
    log.close(NOW_MS)


def test_a_clean_log_is_not_read() -> None:
    files = MemoryFileSystem()
    written(files)
    log = open_log(files, SMALL, recovery_point=20)
    assert log.recovery.scanned_bytes == 0
    assert len(records_of(log)) == 20


@pytest.mark.parametrize("suffix", [".index", ".snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("damage", ["gone", "flipped", "cut"])
@pytest.mark.parametrize("clean", [True, False])
def test_caches_are_rebuilt(suffix: str, damage: str, *, clean: bool) -> None:
    files = MemoryFileSystem()
    log = open_log(files, SMALL)
    for number in range(9):
        batch = batch_of(1, size=80, producer_id=3, producer_epoch=0, base_sequence=number)
        append(log, batch, leader_epoch=number // 3)
    log.close(NOW_MS)
    for name in [name for name in files.list(DIRECTORY) if name.endswith(suffix)]:
        path = f"{DIRECTORY}/{name}"
        content = bytearray(files.read_file(path) or b"")
        content[len(content) // 2] ^= 1
        files.remove(path)
        if damage != "gone":
            files.write_file(path, bytes(content) if damage == "flipped" else bytes(content[:-1]))
    log = open_log(files, SMALL, clean=clean, recovery_point=9)
    assert [record.offset for record in records_of(log)] == list(range(9))
    assert [log.end_offset_for_epoch(epoch) for epoch in range(3)] == [(0, 3), (1, 6), (2, 9)]
    retry = batch_of(1, size=80, producer_id=3, producer_epoch=0, base_sequence=6)
    info = log.append(retry, leader_epoch=2, now_ms=NOW_MS)
    assert (info.base_offset, info.duplicate) == (6, True)
    assert log.offset_for_timestamp(NOW_MS) is not None


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\0", b"garbage", batch_of()[:-1], batch_of()[:30]])
def test_a_torn_tail_is_cut_off_and_reported(tail: bytes) -> None:
    files, journal = MemoryFileSystem(), RecordingJournal()
    log = open_log(files)
    append(log, batch_of(4))
    files.open(f"{DIRECTORY}/{0:020d}.log").append([tail])
    log = open_log(files, clean=False, recovery_point=2, journal=journal)
    assert (log.log_end_offset, log.synced_offset, log.high_watermark) == (4, 4, 4)
    assert log.recovery.truncated_bytes == len(tail)
    assert journal.named("torn_log_tail_cut_off")[0]["truncated_bytes"] == len(tail)
    assert append(log, batch_of()) == 4


@pytest.mark.parametrize(
    ("damaged_byte", "clean", "recovery_point"),
    [
        pytest.param(70, False, 3, id="content of the batch at the recovery point"),
        pytest.param(70, False, 4, id="content of the last batch below it"),
        pytest.param(70, True, 4, id="content, after a clean shutdown"),
        pytest.param(11, False, 6, id="length"),
        pytest.param(11, True, 6, id="length, after a clean shutdown"),
    ],
)
def test_damage_below_the_recovery_point_is_not_cut_off(
    damaged_byte: int, *, clean: bool, recovery_point: int
) -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    for _ in range(3):
        append(log, batch_of(2))
    path = f"{DIRECTORY}/{0:020d}.log"
    content = bytearray(files.read_file(path) or b"")
    content[len(content) // 3 + damaged_byte] ^= 1
    files.write_file(path, bytes(content))
    with pytest.raises(StorageError, match=r"\.log is damaged at byte \d+ \(offset [24]\).*backup"):
        open_log(files, clean=clean, recovery_point=recovery_point)
    assert files.read_file(path) == bytes(content)
    if recovery_point < 6:
        assert open_log(files, clean=False, recovery_point=2).log_end_offset == 2


def test_missing_files_of_synced_data_are_an_error() -> None:
    files = MemoryFileSystem()
    written(files)
    last = names(files, ".log")[-1]
    files.remove(f"{DIRECTORY}/{last:020d}.log")
    for clean in (True, False):
        with pytest.raises(StorageError, match="safely stored up to 20"):
            open_log(files, SMALL, clean=clean, recovery_point=20)
    with pytest.raises(StorageError, match="safely stored up to 5"):
        open_log(MemoryFileSystem(), recovery_point=5)


def test_a_lost_beginning_is_an_error_unless_it_was_never_safe() -> None:
    files = MemoryFileSystem()
    written(files)
    files.remove(f"{DIRECTORY}/{0:020d}.log")
    with pytest.raises(StorageError, match="segment files are missing"):
        open_log(files, SMALL, clean=False, recovery_point=20, log_start_offset=0)
    log = open_log(files, SMALL, clean=False, recovery_point=0, log_start_offset=0)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)


def test_a_hole_between_segments_is_found_when_it_is_read() -> None:
    files = MemoryFileSystem()
    written(files)
    second = names(files, ".log")[1]
    files.remove(f"{DIRECTORY}/{second:020d}.log")
    log = open_log(files, SMALL, recovery_point=20)
    with pytest.raises(CorruptRecordError, match="the next begins at"):
        log.read(0, max_bytes=100, up_to=20, minimum_one=True)


def test_leftovers_are_removed_and_strangers_left_alone() -> None:
    files = MemoryFileSystem()
    written(files)
    for name in (
        "x.tmp",
        f"{0:020d}.log.deleted",
        "notes.txt",
        f"{77:020d}.index",
        f"{99:020d}.snapshot",
    ):
        files.write_file(f"{DIRECTORY}/{name}", b"?")
    log = open_log(files, SMALL, recovery_point=20)
    found = files.list(DIRECTORY)
    assert "notes.txt" in found
    assert not {"x.tmp", f"{0:020d}.log.deleted", f"{77:020d}.index", f"{99:020d}.snapshot"} & set(
        found
    )
    assert log.log_end_offset == 20


def test_segments_below_the_log_start_are_removed() -> None:
    """A crash between making the new log start durable and removing the files."""
    files = MemoryFileSystem()
    written(files)
    bases = names(files, ".log")
    log = open_log(files, SMALL, recovery_point=20, log_start_offset=bases[2] + 1)
    assert names(files, ".log") == bases[2:]
    assert log.log_start_offset == bases[2] + 1


def test_the_first_write_and_a_roll_wait_for_no_sync() -> None:
    files = CrashFileSystem()
    log = open_log(files, SMALL, metadata=b"id")
    seen: list[str] = []

    def note(kind: str, _path: str) -> None:
        seen.append(kind)

    files.fault = note
    for _ in range(12):
        append(log, batch_of(1, size=80))
    assert log.segment_count > 2
    log.roll(NOW_MS)
    assert not {"sync", "sync_directory", "write_file", "rename"} & set(seen)
    task = log.start_sync()
    assert task is not None
    seen.clear()
    task.run()
    # The segments and `partition.metadata`, the names of them, and that of the directory.
    assert seen == ["sync"] * (log.segment_count + 1) + ["sync_directory"] * 2
    log.finish_sync(task)
    assert log.start_sync() is None


@pytest.mark.parametrize("refused", ["sync", "sync_directory"])
def test_a_refused_sync_is_repeated_in_full_by_the_next_sync(refused: str) -> None:
    """Sealed segments, their names, the new directory and `partition.metadata` must not be left out."""
    files = CrashFileSystem()
    log = open_log(files, SMALL, metadata=b"id")
    for _ in range(12):
        append(log, batch_of(1, size=80))
    log.roll(NOW_MS)
    append(log, batch_of(1, size=80))
    synced: list[tuple[str, str]] = []
    refusals = [OSError(errno.EMFILE, "Too many open files")]

    def note(kind: str, path: str) -> None:
        if kind == refused and refusals:
            raise refusals.pop()
        synced.append((kind, path))

    task = log.start_sync()
    assert task is not None
    segments = {("sync", f"{DIRECTORY}/{base:020}.log") for base in names(files, ".log")}
    assert len(segments) == log.segment_count > 2
    files.fault = note
    with pytest.raises(OSError, match="Too many open files"):
        task.run()
    log.put_back(task)
    append(log, batch_of(1, size=80))
    synced.clear()
    again = log.start_sync()
    assert again is not None
    again.run()
    directories = {("sync_directory", DIRECTORY), ("sync_directory", "")}
    assert segments | directories | {("sync", f"{DIRECTORY}/partition.metadata")} <= set(synced)
    log.finish_sync(again)
    assert log.synced_offset == log.log_end_offset
    assert log.start_sync() is None


def test_a_close_syncs_the_name_of_an_empty_segment() -> None:
    files = CrashFileSystem()
    log = open_log(files, LogConfig(retention_ms=-1))
    append(log, batch_of(3))
    sync(log)
    log.roll(NOW_MS)
    log.close(NOW_MS)
    for seed in range(20):
        assert names(files.after_power_cut(seed), ".log") == [0, 3]


def test_metadata_that_a_crash_has_torn_are_written_again() -> None:
    files = CrashFileSystem()
    log = open_log(files, metadata=b"topic id")
    append(log, batch_of())
    path = f"{DIRECTORY}/partition.metadata"
    files.open(path).truncate(2)
    files.sync_directory("")
    open_log(files, clean=False, metadata=b"topic id")
    for seed in range(20):
        assert files.after_power_cut(seed).read_file(path) == b"topic id"
