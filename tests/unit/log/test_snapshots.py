"""Snapshots of producer state when the tail of a log is cut."""

from __future__ import annotations

from headrace.core.log.config import LogConfig
from headrace.core.log.partition_log import PartitionLog
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.logs import DIRECTORY, NOW_MS, batch_of, open_log

CONFIG = LogConfig(segment_bytes=500)


def append(log: PartitionLog, sequence: int) -> int:
    batch = batch_of(1, size=100, producer_id=3, producer_epoch=0, base_sequence=sequence)
    return log.append(batch, leader_epoch=0, now_ms=NOW_MS).base_offset


def names(files: MemoryFileSystem, suffix: str) -> list[str]:
    return [name for name in files.list(DIRECTORY) if name.endswith(suffix)]


def test_cutting_a_torn_tail_keeps_the_snapshots_below_it() -> None:
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


def test_snapshots_of_a_tail_that_is_gone_go_with_it() -> None:
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
