"""Lookups by time over transactions whose records have event times, long before their markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.log import LogConfig, Marker, PartitionLog
from headrace.ports import FileSystem
from headrace.records.builder import BatchBuilder
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.logs import NOW_MS, append, open_log, sync

EVENTS_MS = NOW_MS - 30 * 86_400_000
ROWS = 10
TRANSACTIONS = 6


def write(log: PartitionLog) -> None:
    """Write transactions of ten records, one second apart, with present markers."""
    for number in range(TRANSACTIONS):
        first = EVENTS_MS + number * ROWS * 1000
        builder = BatchBuilder(transactional=True)
        for row in range(ROWS):
            assert builder.append(None, b"v" * 20, (), first + row * 1000)
        append(log, builder.build(producer_id=1, producer_epoch=0, base_sequence=number * ROWS))
        marker = Marker(1, 0, 0, number % 3 != 2, 1)
        log.append_marker(marker, leader_epoch=0, now_ms=NOW_MS + number)
    sync(log)
    log.advance_high_watermark(log.log_end_offset)


def offset_of(row: int) -> int:
    return row + row // ROWS  # a marker after every ten


@pytest.fixture(params=["memory", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return MemoryFileSystem() if request.param == "memory" else OsFileSystem(tmp_path)


@pytest.mark.parametrize("segment_bytes", [700, 1 << 20])
@pytest.mark.parametrize("interval", [1, 4096])
@pytest.mark.parametrize("opened", ["as written", "clean", "recovered", "without caches"])
def test_a_time_finds_the_record_and_no_marker(
    files: FileSystem, segment_bytes: int, interval: int, opened: str
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
    log = open_log(files, config)
    write(log)
    if opened != "as written":
        log.close(NOW_MS)
        if opened == "without caches":
            for name in files.list(log.directory):
                if name.endswith(".index"):
                    files.remove(f"{log.directory}/{name}")
        log = open_log(files, config, clean=opened == "clean")
    rows = ROWS * TRANSACTIONS
    for row in range(rows):
        found = log.offset_for_timestamp(EVENTS_MS + row * 1000)
        assert found is not None
        assert (found.offset, found.timestamp) == (offset_of(row), EVENTS_MS + row * 1000)
    assert log.offset_for_timestamp(EVENTS_MS + rows * 1000) is None  # only markers are so late
    assert log.offset_for_timestamp(NOW_MS) is None
    newest = log.offset_of_max_timestamp()
    assert newest is not None
    assert (newest.offset, newest.timestamp) == (
        offset_of(rows - 1),
        EVENTS_MS + (rows - 1) * 1000,
    )
    log.advance_log_start_offset(offset_of(25))
    found = log.offset_for_timestamp(EVENTS_MS)
    assert found is not None
    assert found.offset == offset_of(25)


def test_a_log_of_markers_alone_has_no_newest_record(files: FileSystem) -> None:
    log = open_log(files)
    log.append_marker(
        Marker(1, 0, 0, committed=True, transaction_version=1), leader_epoch=0, now_ms=NOW_MS
    )
    sync(log)
    log.advance_high_watermark(log.log_end_offset)
    assert log.offset_of_max_timestamp() is None
    assert log.offset_for_timestamp(0) is None


def test_retention_still_counts_from_the_markers() -> None:
    """Records with old event times, written today, are not deleted today."""
    # With the default segment.ms each marker, a month younger, would start a new segment.
    config = LogConfig(segment_bytes=700, segment_ms=10**12, retention_ms=86_400_000)
    log = open_log(MemoryFileSystem(), config)
    write(log)
    assert log.delete_old_segments(NOW_MS + 1000) == []
    assert log.delete_old_segments(NOW_MS + 2 * 86_400_000)
