"""Truncation of a log's end: what remains, what is refused, and what happens at the same time."""

from __future__ import annotations

import pytest

from headrace.core.log import LogConfig, PartitionLog
from headrace.core.log.index.leader_epochs import EPOCHS_FILE
from headrace.errors import OffsetOutOfRangeError
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
