"""The memory that producers take: of one log, and of all logs that share a bound."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from headrace.core.log import BatchEntry, LogConfig, Shared
from headrace.core.log.files.caches import write_cache
from headrace.core.log.producers import snapshots
from headrace.core.log.producers.producer_bound import ProducerBound
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.errors import StorageError
from headrace.ports import FileSystem
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.compaction import settle
from tests.fixtures.logs import DIRECTORY, NOW_MS, append, batch_of, open_log
from tests.fixtures.transactions import begin, end


def shared(limit: int) -> Shared:
    bounds = Shared()
    bounds.producers = ProducerBound(limit)
    return bounds


def write(state: ProducerStates, producer_id: int, sequence: int = 0, now_ms: int = NOW_MS) -> None:
    """Append a batch of one record as the log does."""
    assert state.check(producer_id, 0, sequence, 0) is None
    offset = 10**9 + sequence
    state.update(producer_id, 0, (sequence, sequence, offset, offset, -1), now_ms)


def invent(state: ProducerStates, first_id: int, count: int) -> None:
    for producer_id in range(first_id, first_id + count):
        write(state, producer_id)


def test_a_producer_needs_few_bytes_of_memory() -> None:
    state = ProducerStates(20_000)
    tracemalloc.start()
    for sequence in range(1000, 1007):
        for producer_id in range(10_000, 12_000):
            write(state, producer_id, sequence, NOW_MS + sequence)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 2000 < 500
    assert state.last_offsets == {10**9 + sequence for sequence in range(1002, 1007)}


def test_batches_are_remembered_whole() -> None:
    state = ProducerStates(10)
    for sequence in range(0, 70, 10):
        state.update(1, 3, (sequence, sequence + 9, sequence, sequence + 9, NOW_MS), NOW_MS)
    entry = state.get(1)
    assert entry is not None
    assert entry.batches == [BatchEntry(n, n + 9, n, n + 9, NOW_MS) for n in range(20, 70, 10)]
    assert state.repeated(1, 3, 30, 39) == BatchEntry(30, 39, 30, 39, NOW_MS)
    assert state.repeated(1, 3, 30, 38) is None
    assert state.repeated(1, 2, 30, 39) is None


def test_invented_producer_ids_displace_no_active_producer() -> None:
    state = ProducerStates(64)
    for sequence in range(2):
        for producer_id in range(20):
            write(state, producer_id, sequence)
    invent(state, 1000, 10_000)
    assert len(state) <= 64
    assert all(state.get(producer_id) is not None for producer_id in range(20))
    assert state.get(10_999) is not None, "a new producer is remembered, too"


def test_the_longest_idle_producers_are_dropped_when_all_keep_writing() -> None:
    state = ProducerStates(64)
    for sequence in range(2):
        for producer_id in range(64):
            write(state, producer_id, sequence)
    write(state, 0, 2)
    for producer_id in range(100, 108):
        write(state, producer_id)
        write(state, producer_id, 1)
    assert state.get(1) is None
    assert state.get(0) is not None


def test_the_memory_of_all_histories_is_bounded_and_the_largest_is_reduced() -> None:
    bounds = shared(1000)
    honest = [open_log(MemoryFileSystem(), shared=bounds) for _ in range(10)]
    for log in honest:
        for producer_id in range(20):
            batch = batch_of(1, producer_id=producer_id, producer_epoch=0, base_sequence=0)
            append(log, batch)
    attacked = [ProducerStates(20_000, bound=bounds.producers) for _ in range(3)]
    for number in range(3000):
        write(attacked[number % 3], 10_000 + number)
        assert bounds.producers.count <= 1000
    assert [log.producer_count for log in honest] == [20] * 10
    assert bounds.producers.count == sum(map(len, attacked)) + 200


def test_a_flood_makes_logs_forget_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = ProducerBound(6400)
    states = [ProducerStates(20_000, bound=bound) for _ in range(40)]
    calls: list[int] = []
    forget = ProducerStates.forget_some

    def counted(state: ProducerStates) -> int:
        calls.append(len(state))
        return forget(state)

    monkeypatch.setattr(ProducerStates, "forget_some", counted)
    for number in range(16_400):
        write(states[number % 40], number)
    assert bound.count <= 6400
    assert sum(calls) < 20 * 10_000, "producers that were looked at for 10,000 that were too many"


def test_open_transactions_stay_and_are_over_the_bound() -> None:
    bounds = shared(64)
    log = open_log(MemoryFileSystem(), shared=bounds)
    for producer_id in range(80):
        begin(log, producer_id)
    invented = ProducerStates(20_000, bound=bounds.producers)
    invent(invented, 1000, 100)
    assert len(log.producers.transactions.open) == log.producer_count == 80
    assert bounds.producers.count < 80 + 64 // 8
    for producer_id in range(80):
        end(log, producer_id, committed=True)
    settle(log)
    invent(invented, 2000, 100)
    assert bounds.producers.count <= 64 + 1


def test_dropped_and_deleted_producers_are_not_counted() -> None:
    bounds, files = shared(1000), MemoryFileSystem()
    log = open_log(files, shared=bounds)
    for producer_id in range(10):
        append(log, batch_of(1, producer_id=producer_id, producer_epoch=0, base_sequence=0))
    other = open_log(MemoryFileSystem(), shared=bounds)
    append(other, batch_of(1, producer_id=7, producer_epoch=0, base_sequence=0))
    assert bounds.producers.count == 11
    log.abandon()
    assert bounds.producers.count == 1
    other.expire_producers(NOW_MS * 2)
    assert bounds.producers.count == 0
    again = open_log(files, clean=False, shared=bounds)
    assert again.producer_count == bounds.producers.count == 10


def test_the_producers_of_a_log_that_cannot_be_opened_are_not_counted() -> None:
    bounds, files = shared(1000), MemoryFileSystem()
    log = open_log(files)
    for producer_id in range(10):
        append(log, batch_of(1, producer_id=producer_id, producer_epoch=0, base_sequence=0))
    log.close(NOW_MS)
    path = f"{DIRECTORY}/{0:020d}.log"
    content = files.read_file(path) or b""
    files.write_file(path, content[:-1])
    files.remove(f"{DIRECTORY}/{0:020d}.index")
    with pytest.raises(StorageError):
        open_log(files, recovery_point=10, clean=True, shared=bounds)
    assert bounds.producers.count == 0


def test_small_segments_do_not_have_all_producers_written_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []

    def counted(files: FileSystem, path: str, content: bytes) -> bool:
        written.append(len(content))
        return write_cache(files, path, content)

    monkeypatch.setattr(snapshots, "write_cache", counted)
    files = MemoryFileSystem()
    log = open_log(files, LogConfig(segment_bytes=1 << 20))
    for producer_id in range(1000):
        append(log, batch_of(1, producer_id=producer_id, producer_epoch=0, base_sequence=0))
    log.config = replace(log.config, segment_bytes=200)
    for _ in range(2000):
        append(log, batch_of(1, size=100))
    assert log.segment_count >= 2000
    assert len(written) > 1
    assert sum(written) <= log.size_bytes
    crashed = open_log(files, log.config, clean=False, recovery_point=log.log_end_offset)
    assert crashed.producer_count == 1000
    log.close(NOW_MS)
    assert open_log(files, log.config, recovery_point=log.log_end_offset).producer_count == 1000
