"""Transactions of one log, rule by rule; tests/property/test_log_transactions.py puts them together."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from crc32c import crc32c

from headrace.core.log import (
    MARKER_SIZE,
    LogConfig,
    Marker,
    PartitionLog,
    build_marker,
    read_marker,
)
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.core.log.producers.transactions import LogTransactions
from headrace.errors import ApiError, ErrorCode
from headrace.records.batch import HEADER_SIZE, check_batch, iterate_headers
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.compaction import keyed, run_round, settle
from tests.fixtures.logs import DIRECTORY, NOW_MS, batch_of, open_log, raw_batches, sync
from tests.fixtures.transactions import begin, end, pieces, read_committed, transactional

COMPACTED = LogConfig(
    retention_ms=-1, compacts=True, min_cleanable_dirty_ratio=0.0, delete_retention_ms=50
)


def reported(log: PartitionLog, offset: int = 0) -> list[tuple[int, int]]:
    """Return (producer id, first offset) of all aborted transactions that a reader gets, each once."""
    found = pieces(log, offset, up_to=log.last_stable_offset, max_bytes=1 << 20)
    return list(dict.fromkeys((o.producer_id, o.first_offset) for _, told in found for o in told))


def paths(files: MemoryFileSystem, suffix: str) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in files.list(DIRECTORY) if name.endswith(suffix)]


def reopen(files: MemoryFileSystem, log: PartitionLog, **options: Any) -> PartitionLog:
    options.setdefault("recovery_point", log.log_end_offset)
    return open_log(files, log.config, **options)


def test_a_marker_has_the_bytes_of_kafkas() -> None:
    batch = build_marker(Marker(7, 3, 9, committed=True), NOW_MS)
    header = check_batch(batch)
    assert len(batch) == MARKER_SIZE
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert (header.producer_id, header.producer_epoch, header.records_count) == (7, 3, 1)
    assert batch[HEADER_SIZE:].hex(" ") == "20 00 00 00 08 00 00 00 01 0c 00 00 00 00 00 09 00"
    assert read_marker(batch) == Marker(7, 3, 9, committed=True)
    aborts = build_marker(Marker(7, 3, 9, committed=False), NOW_MS)
    assert read_marker(aborts) == Marker(7, 3, 9, committed=False)


def test_a_marker_takes_effect_when_the_high_watermark_passes_the_marker() -> None:
    log = open_log(MemoryFileSystem())
    log.append(batch_of(), leader_epoch=0, now_ms=NOW_MS)
    begin(log, 1)
    log.advance_high_watermark(2)
    end(log, 1, committed=True)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    log.advance_high_watermark(3)
    assert log.last_stable_offset == 3


def test_the_first_open_transaction_holds_the_last_stable_offset() -> None:
    log = open_log(MemoryFileSystem())
    for producer_id in (1, 2, 3):
        begin(log, producer_id)
    for producer_id in (2, 3):
        end(log, producer_id, committed=True)
    settle(log)
    assert log.last_stable_offset == 0
    end(log, 1, committed=False)
    settle(log)
    assert log.last_stable_offset == log.log_end_offset == 6
    assert reported(log) == [(1, 0)]


def refused(code: ErrorCode, log: PartitionLog, marker: Marker) -> None:
    end_offset = log.log_end_offset
    with pytest.raises(ApiError) as caught:
        log.append_marker(marker, leader_epoch=0, now_ms=NOW_MS)
    assert caught.value.code == code
    assert log.log_end_offset == end_offset


def test_markers_of_older_producer_or_coordinator_epochs_are_refused() -> None:
    log = open_log(MemoryFileSystem())
    end(log, 1, committed=True, epoch=4, coordinator=6)
    begun = transactional((b"k", b"v"), producer_id=1, epoch=4)
    log.append(begun, leader_epoch=0, now_ms=NOW_MS)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log, Marker(1, 3, 6, committed=True))
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, log, Marker(1, 4, 5, committed=True))
    # With an epoch for each transaction, a marker of the epoch that is open is one of the transaction before.
    delayed = Marker(1, 4, 6, committed=True, transaction_version=2)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, log, delayed)
    assert log.producers.transactions.open == {1: 1}
    end(log, 1, committed=True, epoch=5, coordinator=6)
    assert not log.producers.transactions.open


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    log = open_log(MemoryFileSystem())
    begin(log, 1)
    plain = keyed((b"k", b"v"), producer_id=1, producer_epoch=0, base_sequence=1)
    with pytest.raises(ApiError) as caught:
        log.append(plain, leader_epoch=0, now_ms=NOW_MS)
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE
    end(log, 1, committed=True)
    assert log.append(plain, leader_epoch=0, now_ms=NOW_MS).base_offset == 2


def test_a_new_epoch_of_the_producer_leaves_its_transaction_open() -> None:
    log = open_log(MemoryFileSystem())
    begin(log, 1)
    bumped = transactional((b"k", b"v"), producer_id=1, epoch=1)
    log.append(bumped, leader_epoch=0, now_ms=NOW_MS)
    assert log.producers.transactions.open == {1: 0}


def test_a_retry_after_the_marker_is_still_recognised() -> None:
    log = open_log(MemoryFileSystem())
    begin(log, 1, b"v")
    end(log, 1, committed=True)
    retried = transactional((b"k", b"v"), producer_id=1)
    info = log.append(retried, leader_epoch=0, now_ms=NOW_MS)
    assert (info.base_offset, info.duplicate) == (0, True)
    assert not log.producers.transactions.open


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    log = open_log(MemoryFileSystem(), LogConfig(max_producer_ids=4))
    begin(log, 1)
    log.expire_producers(NOW_MS * 2)
    for producer_id in range(10, 30):
        batch = keyed((b"k", b"v"), producer_id=producer_id, producer_epoch=0, base_sequence=0)
        log.append(batch, leader_epoch=0, now_ms=NOW_MS + producer_id)
    assert log.producers.get(1) is not None
    end(log, 1, committed=True)
    log.expire_producers(NOW_MS * 2)
    assert log.producer_count == 0


def test_retention_deletes_no_record_of_an_open_transaction() -> None:
    log = open_log(MemoryFileSystem(), LogConfig(retention_bytes=1))
    for number in range(4):
        if number == 2:
            begin(log, 1)
        log.append(batch_of(), leader_epoch=0, now_ms=NOW_MS)
        log.roll(NOW_MS)
    settle(log)
    assert log.delete_old_segments(NOW_MS) == [0, 1]
    assert log.last_stable_offset == 2
    end(log, 1, committed=True)
    log.roll(NOW_MS)
    settle(log)
    assert log.delete_old_segments(NOW_MS) == [2, 4]


def test_deleted_records_are_below_the_last_stable_offset() -> None:
    log = open_log(MemoryFileSystem())
    begin(log, 1, b"a", b"b")
    begin(log, 2)
    end(log, 2, committed=False)
    settle(log)
    log.advance_log_start_offset(1)
    assert log.last_stable_offset == 1
    log.advance_log_start_offset(4)
    log.purge()
    assert (log.last_stable_offset, list(log.producers.transactions.aborted)) == (4, [])


def long_abort(files: MemoryFileSystem) -> PartitionLog:
    """Return a closed log with an aborted transaction over three segments, and one that is open."""
    log = open_log(files)
    begin(log, 1)
    log.roll(NOW_MS)
    log.append(batch_of(), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    end(log, 1, committed=False, coordinator=5)
    begin(log, 2)
    log.roll(NOW_MS)
    log.append(batch_of(), leader_epoch=0, now_ms=NOW_MS)
    sync(log)
    log.close(NOW_MS)
    return log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["", ".txnindex", ".snapshot", ".index", "damage"])
def test_b13_an_aborted_transaction_over_three_segments_is_known_after_a_start(
    *, clean: bool, lost: str
) -> None:
    files = MemoryFileSystem()
    log = long_abort(files)
    for path in paths(files, lost) if lost.startswith(".") else []:
        files.remove(path)
    if lost == "damage":
        path = paths(files, ".txnindex")[0]
        content = bytearray(files.read_file(path) or b"")
        content[-9] ^= 1
        files.write_file(path, bytes(content))
    again = reopen(files, log, clean=clean)
    assert again.last_stable_offset == 3
    assert reported(again) == [(1, 0)]
    assert reported(again, offset=1) == [(1, 0)]
    assert read_committed(again) == [(1, None, b"v/0")]
    entry = again.producers.get(1)
    assert entry is not None
    assert entry.coordinator_epoch == 5
    again.close(NOW_MS)
    assert len(paths(files, ".txnindex")) == 2  # of the segment with the marker, and all after it


def test_deleting_a_segment_deletes_its_transaction_index() -> None:
    files = MemoryFileSystem()
    log = reopen(files, long_abort(files), clean=True)
    assert paths(files, ".txnindex")
    end(log, 2, committed=True)
    log.advance_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)
    log.advance_log_start_offset(log.log_end_offset)
    log.delete_old_segments(NOW_MS)
    log.purge()
    assert not paths(files, ".txnindex")
    assert not reported(log, log.log_start_offset)


def test_a_log_without_aborted_transactions_has_no_index_of_them() -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    begin(log, 1)
    end(log, 1, committed=True)
    log.roll(NOW_MS)
    log.close(NOW_MS)
    assert not paths(files, ".txnindex")


def test_an_index_that_is_older_than_the_snapshot_is_not_believed() -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    begin(log, 1)
    end(log, 1, committed=False)
    log.maybe_write_caches()
    log._log_files.write_caches(log.segments.active)
    (path,) = paths(files, ".txnindex")
    older = files.read_file(path)
    assert older is not None
    begin(log, 2)
    end(log, 2, committed=False)
    log.close(NOW_MS)
    files.write_file(path, older)
    assert reported(reopen(files, log, clean=True)) == [(1, 0), (2, 2)]


def test_index_entries_of_a_lost_tail_are_not_used_for_later_batches() -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    for producer_id in (1, 2):
        begin(log, producer_id)
        end(log, producer_id, committed=False)
    log._log_files.write_caches(log.segments.active)
    (path,) = paths(files, ".log")
    files.open(path).truncate(log.segments.active.size - MARKER_SIZE)  # never synced
    again = reopen(files, log, clean=False, recovery_point=2)
    assert (again.log_end_offset, again.last_stable_offset) == (3, 2)
    end(again, 2, committed=True)
    again.append(batch_of(), leader_epoch=0, now_ms=NOW_MS)
    again._log_files._snapshots.write(again.producers, again.log_end_offset)
    assert reported(reopen(files, again, clean=False)) == [(1, 0)]


def test_snapshots_of_earlier_versions_are_read() -> None:
    producer = struct.pack(">qhqB", 4, 2, NOW_MS, 1) + struct.pack(">iiqqq", 0, 1, 10, 11, -1)
    content = struct.pack(">4sHHqI", b"HRPS", 1, 0, 12, 1) + producer
    content += struct.pack(">I", crc32c(content))
    state = ProducerStates(10)
    assert state.restore(content, 12)
    entry = state.get(4)
    assert entry is not None
    assert (entry.epoch, entry.coordinator_epoch, entry.batches[0].last_offset) == (2, -1, 11)
    assert not state.transactions.open
    again = ProducerStates(10)
    assert again.restore(state.encode(12), 12)
    assert again.get(4) is not None


def compacted(files: MemoryFileSystem) -> PartitionLog:
    """Return a log with an aborted transaction, then a committed one of its producer, in sealed segments."""
    log = open_log(files, COMPACTED)
    log.append(keyed((b"a", b"old")), leader_epoch=0, now_ms=NOW_MS)
    begin(log, 1, b"aborted")  # of key k
    aborted = transactional((b"a", b"aborted"), producer_id=1, sequence=1)
    log.append(aborted, leader_epoch=0, now_ms=NOW_MS)
    end(log, 1, committed=False)
    begin(log, 1, b"committed", sequence=2)
    end(log, 1, committed=True)
    log.roll(NOW_MS)
    settle(log)
    return log


def test_b18_compaction_removes_aborted_records_and_keeps_the_records_that_they_would_have_replaced() -> (
    None
):
    files = MemoryFileSystem()
    log = compacted(files)
    assert run_round(files, log) is not None
    assert read_committed(log) == [(0, b"a", b"old"), (4, b"k", b"committed")]
    with_records = [o for o, b in raw_batches(log).items() if check_batch(b).records_count]
    assert with_records == [0, 3, 4, 5]
    assert reported(log) == [(1, 1)]


def test_b18_an_expired_marker_is_removed_with_its_aborted_transaction() -> None:
    files = MemoryFileSystem()
    log = compacted(files)
    run_round(files, log)
    dirty = keyed((b"z", b"z"))
    for passed, kept in ((40, [0, 3, 4, 5]), (60, [0, 4, 5, 7])):
        log.append(dirty, leader_epoch=0, now_ms=NOW_MS)
        log.roll(NOW_MS)
        settle(log)
        assert run_round(files, log, now_ms=NOW_MS + passed) is not None
        found = [o for o, b in raw_batches(log).items() if check_batch(b).records_count]
        assert found[:4] == kept, passed
    # With the aborted transaction, a reader would take the committed one for a part of it.
    assert reported(log) == []
    assert (4, b"k", b"committed") in read_committed(log)
    for clean in (False, True):
        again = reopen(files, log, clean=clean)
        assert (reported(again), again.last_stable_offset) == ([], again.log_end_offset)
        assert (4, b"k", b"committed") in read_committed(again)


def test_a_batch_emptied_by_compaction_begins_no_transaction() -> None:
    """The headers that a live producer's state rests on stay, without the records and then without the marker."""
    files = MemoryFileSystem()
    log = open_log(files, COMPACTED)
    begin(log, 1)
    end(log, 1, committed=False)
    log.roll(NOW_MS)
    for number in range(3):
        log.append(keyed((b"z", b"z")), leader_epoch=0, now_ms=NOW_MS)
        log.roll(NOW_MS)
        settle(log)
        run_round(files, log, now_ms=NOW_MS + 60 * number)
    contents = [files.read_file(path) or b"" for path in paths(files, ".log")]
    batches = [header for content in contents for _, header in iterate_headers(content)]
    assert any(header.is_transactional for header in batches)
    assert not any(header.is_transactional and header.records_count for header in batches)
    for path in paths(files, ".snapshot"):
        files.remove(path)
    assert reopen(files, log, clean=False).last_stable_offset == log.log_end_offset


def test_compaction_waits_until_the_marker_is_synced() -> None:
    files = MemoryFileSystem()
    log = open_log(files, COMPACTED)
    begin(log, 1)
    log.roll(NOW_MS)
    sync(log)
    end(log, 1, committed=False)
    log.advance_high_watermark(log.log_end_offset)  # as with durability `os`
    assert log.last_stable_offset == 2
    assert run_round(files, log) is None
    sync(log)
    assert run_round(files, log) is not None


def test_compaction_ends_where_a_transaction_is_open() -> None:
    files = MemoryFileSystem()
    log = open_log(files, COMPACTED)
    for _ in range(2):
        log.append(keyed((b"a", b"v")), leader_epoch=0, now_ms=NOW_MS)
        log.roll(NOW_MS)
    begin(log, 1)
    for _ in range(2):
        log.append(keyed((b"a", b"v")), leader_epoch=0, now_ms=NOW_MS)
        log.roll(NOW_MS)
    settle(log)
    task = run_round(files, log)
    assert task is not None
    assert task.clean_end_offset == 2


def test_many_aborted_transactions_take_little_memory() -> None:
    transactions = LogTransactions()
    count = 50_000
    tracemalloc.start()
    for number in range(count):
        transactions.begin(number % 50, 2 * number)
        transactions.end(number % 50, 2 * number + 1, committed=False)
        transactions.decided.clear()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 60 * count  # an array that grows has some space left
    aborted = transactions.aborted
    assert [entry.first_offset for entry in aborted.between(100, 104)] == [100, 102]
    transactions.start_at(2 * count - 4)
    assert [entry.last_offset for entry in aborted] == [2 * count - 3, 2 * count - 1]
