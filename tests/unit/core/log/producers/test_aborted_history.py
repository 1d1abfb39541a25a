"""Aborted transactions in memory and in files, and the number of them in one answer."""

from __future__ import annotations

import errno
import random

import pytest

from headrace.core.log import AbortedLookup, AbortedTransaction, PartitionLog, Shared
from headrace.core.log.index.aborted_transactions import AbortedTransactions
from headrace.core.log.producers import aborted_history
from headrace.core.log.producers.aborted_history import AbortedCache, AbortedHistory
from headrace.errors import StorageError
from headrace.records.batch import iterate_headers
from headrace.storage.memory_files import MemoryFileSystem
from headrace.types import FileRange
from tests.fixtures.compaction import settle
from tests.fixtures.logs import DIRECTORY, NOW_MS, open_log, raw_batches
from tests.fixtures.transactions import begin, end, read_committed


def shared(**limits: int) -> Shared:
    bounds = Shared()
    bounds.aborted = AbortedCache(**limits)
    return bounds


def history(log: PartitionLog) -> AbortedHistory:
    return log.producers.transactions.aborted


def abort(log: PartitionLog, count: int, *, first_producer: int = 0) -> None:
    """Abort transactions of one batch each, one after the other."""
    for number in range(first_producer, first_producer + count):
        begin(log, number)
        end(log, number, committed=False)
    settle(log)


def open_at_once(log: PartitionLog, count: int) -> None:
    """Begin transactions that are all open at the same time, then abort them."""
    for producer_id in range(count):
        begin(log, producer_id)
    for producer_id in range(count):
        end(log, producer_id, committed=False)
    settle(log)


def answer(log: PartitionLog, offset: int, most: int) -> tuple[int, list[AbortedTransaction]]:
    """Return the offset behind an answer, and its aborted transactions."""
    found = log.read(offset, max_bytes=1 << 20, up_to=log.last_stable_offset, minimum_one=True)
    assert found is not None
    records, told = AbortedLookup(most).within_range(log, offset, found)
    assert isinstance(records, FileRange)
    return [header.next_offset for _, header in iterate_headers(records.read())][-1], list(told)


def test_a_segment_is_sealed_when_it_has_many_aborted_transactions() -> None:
    bounds = shared(most_in_segment=100, most_cached=150)
    log = open_log(MemoryFileSystem(), shared=bounds)
    abort(log, 1000)
    assert log.segment_count == 10
    assert [part.count for part in history(log).parts] == [100] * 9
    assert not any(part.unsaved for part in history(log).parts)
    assert bounds.aborted.held == 100
    assert len(bounds.aborted) <= 150
    assert len(history(log)) == 1000
    assert read_committed(log) == []


def test_a_committed_transaction_does_not_seal_the_segment() -> None:
    log = open_log(MemoryFileSystem(), shared=shared(most_in_segment=2))
    abort(log, 2)
    for producer_id in range(10):
        begin(log, producer_id, sequence=1 if producer_id < 2 else 0)
        end(log, producer_id, committed=True)
    assert log.segment_count == 1


def test_segments_are_sealed_earlier_when_all_logs_together_have_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aborted_history, "LEAST_IN_SEGMENT", 5)
    bounds = shared(most_in_segment=50, most_in_memory=60)
    logs = [open_log(MemoryFileSystem(), shared=bounds) for _ in range(8)]
    for log in logs:
        abort(log, 40)
    assert bounds.aborted.held <= 60 + 5 * len(logs)
    assert bounds.aborted.held == sum(
        sum(entry.last_offset >= log.segments.active.base_offset for entry in history(log))
        for log in logs
    )
    for log in logs:
        log.abandon()
    assert bounds.aborted.held == 0
    assert len(bounds.aborted) == 0


def test_a_reader_of_one_segment_reads_one_file() -> None:
    bounds = shared(most_in_segment=10, most_cached=10)
    log = open_log(MemoryFileSystem(), shared=bounds)
    abort(log, 200)
    before = bounds.aborted.loads
    end_offset, told = answer(log, 0, 4096)
    assert (end_offset, len(told)) == (21, 11), "the last one has its marker in the next segment"
    assert bounds.aborted.loads - before == 1
    answer(log, 4, 4096)
    assert bounds.aborted.loads - before == 1, "it is in the cache"


def test_a_transaction_that_ends_in_a_later_segment_is_known_without_its_file() -> None:
    bounds = shared(most_in_segment=10, most_cached=1)
    log = open_log(MemoryFileSystem(), shared=bounds)
    begin(log, 5000)
    abort(log, 95)
    end(log, 5000, committed=False)
    abort(log, 50, first_producer=100)
    before = bounds.aborted.loads
    _, told = answer(log, 0, 4096)
    assert [entry.producer_id for entry in told] == [5000, *range(11)]
    assert bounds.aborted.loads - before == 1, "that of the segment which is read"


@pytest.mark.parametrize("damage", ["removed", "flipped", "of another segment", "emptied"])
def test_a_missing_transaction_index_is_rebuilt_from_the_batches(damage: str) -> None:
    files = MemoryFileSystem()
    log = open_log(files, shared=shared(most_in_segment=10, most_cached=1))
    abort(log, 40)
    first, second = [part.base_offset for part in history(log).parts][:2]
    path, other = (f"{DIRECTORY}/{base:020d}.txnindex" for base in (first, second))
    content = files.read_file(path) or b""
    bad = {
        "removed": None,
        "flipped": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        "of another segment": files.read_file(other),
        "emptied": b"",
    }[damage]
    if bad is None:
        files.remove(path)
    else:
        files.write_file(path, bad)
    with pytest.raises(StorageError, match=r"txnindex is missing or damaged"):
        answer(log, 0, 4096)
    assert read_committed(log, second) == [], "the other segments are read as before"
    assert len(raw_batches(log)) == 80, "and readers of everything get it"
    log.close(NOW_MS)
    again = open_log(files, recovery_point=log.log_end_offset)
    assert read_committed(again) == []
    assert len(history(again)) == 40


class FullDisk(MemoryFileSystem):
    """No cache can be written while it is full."""

    full = False

    def open(self, path: str, *, create: bool = False):
        if self.full and create and path.endswith(".txnindex"):
            raise OSError(errno.ENOSPC, "no space")
        return super().open(path, create=create)


def test_index_entries_stay_in_memory_until_a_full_disk_has_space() -> None:
    files = FullDisk()
    log = open_log(files, shared=shared(most_in_segment=10, most_cached=1))
    files.full = True
    abort(log, 25)
    assert [part.unsaved is None for part in history(log).parts] == [False, False]
    assert len(answer(log, 0, 4096)[1]) == 11
    log.maybe_write_caches()
    assert [part.unsaved is None for part in history(log).parts] == [False, False]
    files.full = False
    log.maybe_write_caches()
    assert [part.unsaved is None for part in history(log).parts] == [True, True]
    assert len(answer(log, 0, 4096)[1]) == 11


def test_an_answer_ends_before_it_names_too_many_aborted_transactions() -> None:
    log = open_log(MemoryFileSystem())
    abort(log, 100)
    end_offset, told = answer(log, 10, 30)
    assert [entry.first_offset for entry in told] == list(range(10, 70, 2))
    assert end_offset == 70
    assert answer(log, 10, 90)[0] == 190
    assert answer(log, 10, 95)[0] == log.log_end_offset == 200


def test_a_response_names_the_producers_of_its_batches_if_too_many_transactions_overlap() -> None:
    log = open_log(MemoryFileSystem())
    open_at_once(log, 500)
    begin(log, 1000)
    end(log, 1000, committed=True)
    settle(log)
    end_offset, told = answer(log, 0, 100)
    assert (end_offset, len(told)) == (100, 100)
    end_offset, told = answer(log, 499, 100)
    assert end_offset == 499 + 64, "a few batches: one of a producer, and markers"
    assert len(told) == 64
    assert {entry.producer_id for entry in told} == {499, *range(63)}
    for most in (1, 64, 499, 500):
        assert read_committed(log, most_listed=most) == [(1000, b"k", b"v")]


def test_objects_are_made_only_for_the_aborted_transactions_of_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(MemoryFileSystem(), shared=shared(most_in_segment=100))
    order = random.Random(1).sample(range(950), 950)
    for producer_id in order:
        begin(log, producer_id)
    for producer_id in range(950):
        end(log, producer_id, committed=False)
    settle(log)
    known = history(log)
    made = 0
    original = AbortedTransactions.__getitem__

    def counted(self: AbortedTransactions, number: int) -> AbortedTransaction:
        nonlocal made
        made += 1
        return original(self, number)

    monkeypatch.setattr(AbortedTransactions, "__getitem__", counted)
    for offset, end_offset in ((0, 1900), (0, 30), (400, 500), (949, 951), (1200, 1201)):
        whole = known.between(offset, end_offset)
        assert whole == sorted(whole, key=lambda entry: entry.first_offset)
        made = 0
        assert known.between(offset, end_offset, most=20) == whole[:21]
        assert made <= 10 * 21
        made = 0
        chosen = [entry for entry in whole if entry.producer_id in {3, 500, 949}]
        assert known.between(offset, end_offset, producers={3, 500, 949}) == chosen
        assert made <= 3


def test_a_response_names_a_bounded_number_of_aborted_transactions() -> None:
    lookup, told = AbortedLookup(100), 0
    refused = 0
    for _ in range(10):
        log = open_log(MemoryFileSystem())
        abort(log, 30)
        found = log.read(0, max_bytes=1 << 20, up_to=log.last_stable_offset, minimum_one=True)
        assert found is not None
        records, aborted = lookup.within_range(log, 0, found)
        told += len(aborted)
        refused += records is None
    assert told == 100
    assert refused == 6


def test_a_response_reads_a_bounded_number_of_index_files() -> None:
    bounds = shared(most_in_segment=2, most_cached=1)
    log = open_log(MemoryFileSystem(), shared=bounds)
    abort(log, 200)
    lookup, before, answered = AbortedLookup(1280), bounds.aborted.loads, 0
    for segment in log.segments.all[:-1]:
        offset = segment.base_offset
        found = log.read(offset, max_bytes=1 << 20, up_to=log.last_stable_offset, minimum_one=True)
        assert found is not None
        answered += lookup.within_range(log, offset, found)[0] is not None
    assert answered == bounds.aborted.loads - before == 10
