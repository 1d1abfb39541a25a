"""Snapshots of producer state when the tail of a log is cut."""

from __future__ import annotations

from headrace.core.log import LogConfig, PartitionLog
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.logs import DIRECTORY, NOW_MS, batch_of, open_log

CONFIG = LogConfig(segment_bytes=500)


def append(log: PartitionLog, sequence: int) -> int:
    batch = batch_of(1, size=100, producer_id=3, producer_epoch=0, base_sequence=sequence)
    return log.append(batch, leader_epoch=0, now_ms=NOW_MS).base_offset


def names(files: MemoryFileSystem, suffix: str) -> list[str]:
    return [name for name in files.list(DIRECTORY) if name.endswith(suffix)]


def test_truncating_a_torn_tail_keeps_earlier_snapshots() -> None:
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    for sequence in range(10):
        assert append(log, sequence) == sequence
    snapshots, segments = names(files, ".snapshot"), names(files, ".log")
    assert len(snapshots) >= 3
    torn = f"{DIRECTORY}/{segments[-1]}"
    content = files.read_file(torn)
    assert content
    files.write_file(torn, content[:-1])

    log = open_log(files, CONFIG, clean=False, recovery_point=int(segments[-1][:20]))

    assert log.log_end_offset == 9
    assert names(files, ".snapshot") == snapshots
    assert log.recovery.scanned_bytes <= len(content), "what lies before is not read again"
    # And the state is that of all batches that are left.
    assert append(log, 8) == 8
    assert log.log_end_offset == 9
    assert append(log, 9) == 9


def test_snapshots_above_a_lost_tail_are_removed() -> None:
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    for sequence in range(10):
        append(log, sequence)
    segments = names(files, ".log")
    files.remove(f"{DIRECTORY}/{segments[-1]}")
    torn = f"{DIRECTORY}/{segments[-2]}"
    content = files.read_file(torn)
    assert content
    files.write_file(torn, content[:-1])

    log = open_log(files, CONFIG, clean=False)

    assert all(int(name[:20]) <= log.log_end_offset for name in names(files, ".snapshot"))
    end = log.log_end_offset
    assert append(log, end) == end


def producing(count: int) -> tuple[MemoryFileSystem, PartitionLog]:
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    for sequence in range(count):
        append(log, sequence)
    return files, log


def keep_oldest_snapshot(files: MemoryFileSystem, oldest: str) -> None:
    """Remove the other snapshots, as if they had not reached the disk."""
    for name in names(files, ".snapshot"):
        if name != oldest:
            files.remove(f"{DIRECTORY}/{name}")


def test_a_snapshot_older_than_deleted_batches_does_not_know_their_producers() -> None:
    files, log = producing(10)
    oldest = names(files, ".snapshot")[0]
    keep_oldest_snapshot(files, oldest)
    for name in names(files, ".log")[:-1]:
        files.remove(f"{DIRECTORY}/{name}")
    (last,) = names(files, ".log")
    files.remove(f"{DIRECTORY}/{last}")
    start = log.log_end_offset

    log = open_log(files, CONFIG, clean=False, recovery_point=start, log_start_offset=start)

    assert log.log_end_offset == start
    assert append(log, start) == start, "an unknown producer may begin anywhere"


def test_a_snapshot_older_than_deleted_segments_is_ignored() -> None:
    files, log = producing(10)
    oldest = names(files, ".snapshot")[0]
    other = batch_of(1, size=100, producer_id=4, producer_epoch=0, base_sequence=0)
    log.append(other, leader_epoch=0, now_ms=NOW_MS)
    keep_oldest_snapshot(files, oldest)
    *gone, last = names(files, ".log")
    for name in gone:
        files.remove(f"{DIRECTORY}/{name}")
    start = int(last[:20])

    log = open_log(files, CONFIG, clean=False, recovery_point=start, log_start_offset=start)

    assert log.producers.get(4) is not None, "what is left in the log is known"
    last_known = log.producers.get(3)
    assert last_known is None or last_known.batches[-1].last_sequence == 9
    assert append(log, 10) == log.log_end_offset - 1


def test_a_retried_batch_that_retention_has_deleted_is_known_after_a_crash() -> None:
    files = MemoryFileSystem()
    log = open_log(files, LogConfig(retention_bytes=0))
    batch = batch_of(1, producer_id=3, producer_epoch=0, base_sequence=0)
    log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    end = log.log_end_offset
    log.roll(NOW_MS)
    assert not names(files, ".snapshot"), "it would be larger than the segment"
    log.advance_high_watermark(end)
    assert log.delete_old_segments(NOW_MS)
    log.purge()

    log = open_log(files, clean=False, recovery_point=end, log_start_offset=log.log_start_offset)

    assert log.append(batch, leader_epoch=0, now_ms=NOW_MS).duplicate
