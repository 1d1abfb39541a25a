"""Truncation of a log's end: what remains, what is refused, and what happens at the same time."""

from __future__ import annotations

import pytest

from headrace.core.log import LogConfig, PartitionLog
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.logs import (
    DIRECTORY,
    NOW_MS,
    append,
    batch_of,
    open_log,
    raw_batches,
    sync,
)

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
