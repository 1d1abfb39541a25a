"""A start after a crash: the data that it reads, the caches that it uses, and the caches that it must ignore."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.core.log import LogConfig, LogManager, PartitionLog, PartitionSpec
from headrace.core.log.append import log_files
from headrace.core.log.index.leader_epochs import EPOCHS_FILE, LeaderEpochCache
from headrace.core.log.upkeep.upkeep import RETENTION_INTERVAL_MS
from headrace.errors import CorruptRecordError
from headrace.records.batch import check_batch
from headrace.storage.memory_files import MemoryFileSystem
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

CONFIG = LogConfig(index_interval_bytes=300)
PATH = f"{DIRECTORY}/{0:020d}"


@pytest.fixture(autouse=True)
def _caches_are_written_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "CACHES_AFTER_BYTES", 1)


def fill(log: PartitionLog, batches: int, *, epoch: int = 0, first: int = 0, size: int = 0) -> None:
    for number in range(first, first + batches):
        batch = batch_of(
            size=size, producer_id=7 + epoch, producer_epoch=0, base_sequence=number - first
        )
        append(log, batch, leader_epoch=epoch)


def state(log: PartitionLog) -> tuple[object, ...]:
    """Return the whole result of a recovery."""
    index = log.segments.active.index
    entries = list(zip(index.offsets, index.positions, index.timestamps, strict=True))
    producers = {
        producer: list(entry.batches)
        for producer in range(30)
        if (entry := log.producers.get(producer)) is not None
    }
    return (
        log.log_end_offset,
        log.segments.active.first_timestamp,
        entries,
        log.epochs.entries,
        producers,
        raw_batches(log),
    )


def raw_position(log: PartitionLog, offset: int) -> int:
    batches = raw_batches(log)
    return sum(len(batch) for base_offset, batch in batches.items() if base_offset < offset)


def without_caches(files: MemoryFileSystem) -> MemoryFileSystem:
    """Return a copy of the log without caches, which a recovery has to read completely."""
    copy = MemoryFileSystem()
    copy.make_directory(DIRECTORY)
    for name in files.list(DIRECTORY):
        if name.endswith(".log"):
            copy.write_file(f"{DIRECTORY}/{name}", files.read_file(f"{DIRECTORY}/{name}") or b"")
    return copy


def test_a_recovery_reads_only_above_the_recovery_point() -> None:
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    fill(log, 50)
    sync(log)
    log.maybe_write_caches()
    cached, durable = log.segments.active.size, log.synced_offset
    fill(log, 3, epoch=1)
    recovered = open_log(files, CONFIG, clean=False, recovery_point=durable)
    assert recovered.recovery.scanned_bytes == log.segments.active.size - cached
    assert recovered.recovery.truncated_bytes == 0
    assert state(recovered) == state(log)


def test_caches_beyond_the_recovery_point_are_used_up_to_that_point() -> None:
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    fill(log, 30)
    log.maybe_write_caches()
    fill(log, 20, epoch=1)
    sync(log)
    log.maybe_write_caches()
    files.remove(f"{DIRECTORY}/{50:020d}.snapshot")
    recovered = open_log(files, CONFIG, clean=False, recovery_point=40)
    size = log.segments.active.size
    assert size * 0.3 < recovered.recovery.scanned_bytes < size * 0.5
    assert state(recovered) == state(log)


@pytest.mark.parametrize("seed", range(60))
def test_caches_do_not_change_the_recovered_state(seed: int) -> None:
    chance = random.Random(seed)
    config = LogConfig(
        index_interval_bytes=chance.choice([1, 300, 2000]),
        segment_bytes=chance.choice([3000, 1 << 20]),
    )
    files = MemoryFileSystem()
    log = open_log(files, config)
    for epoch in range(chance.randint(1, 5)):
        fill(log, chance.randint(1, 25), epoch=epoch, size=chance.choice([0, 200]))
        if chance.random() < 0.6:
            log.maybe_write_caches()
    recovery_point = chance.choice([0, *raw_batches(log), log.log_end_offset])
    expected = open_log(without_caches(files), config, clean=False, recovery_point=recovery_point)
    if chance.random() < 0.3:
        files.remove(
            f"{DIRECTORY}/{chance.choice(files.list(DIRECTORY))}".replace(".log", ".index")
        )
    assert state(open_log(files, config, clean=False, recovery_point=recovery_point)) == state(
        expected
    )


def test_caches_of_a_lost_tail_are_not_used_for_later_batches() -> None:
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    fill(log, 10)
    sync(log)
    ten = log.segments.active.size
    fill(log, 20, epoch=1)
    log.maybe_write_caches()
    # The power fails: caches reached the disk, and the records that they describe did not.
    files.write_file(f"{PATH}.log", (files.read_file(f"{PATH}.log") or b"")[:ten])
    log = open_log(files, CONFIG, clean=False, recovery_point=10)
    assert log.log_end_offset == 10
    assert files.read_file(f"{PATH}.index") is None
    assert LeaderEpochCache.decode(files.read_file(f"{DIRECTORY}/{EPOCHS_FILE}"))[1] == 10
    assert [name for name in files.list(DIRECTORY) if name.endswith(".snapshot")] == []
    fill(log, 40, epoch=2, size=50)
    sync(log)
    expected = state(log)
    recovered = open_log(files, CONFIG, clean=False, recovery_point=50)
    assert state(recovered) == expected
    assert recovered.epochs.entries == [(0, 0), (2, 10)]


def test_caches_do_not_hide_damage_above_the_recovery_point() -> None:
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    fill(log, 30)
    log.maybe_write_caches()
    content = bytearray(files.read_file(f"{PATH}.log") or b"")
    position = raw_position(log, 20)
    content[position + 65] ^= 1
    files.write_file(f"{PATH}.log", bytes(content))
    recovered = open_log(files, CONFIG, clean=False, recovery_point=10)
    assert recovered.log_end_offset == 20
    assert files.read_file(f"{PATH}.log") == bytes(content[:position])


def test_damage_to_records_below_the_recovery_point_is_left_to_their_readers() -> None:
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    fill(log, 10)
    content = bytearray(files.read_file(f"{PATH}.log") or b"")
    content[len(content) // 2 + 65] ^= 1
    files.write_file(f"{PATH}.log", bytes(content))
    recovered = open_log(files, CONFIG, clean=False, recovery_point=10)
    assert recovered.log_end_offset == 10
    damaged = raw_batches(recovered)[5]
    with pytest.raises(CorruptRecordError, match="CRC"):
        check_batch(damaged)


def test_a_wrong_base_offset_is_not_taken_for_compaction_where_the_segment_is_torn() -> None:
    files = MemoryFileSystem()
    log = open_log(files, LogConfig(segment_bytes=500))
    fill(log, 20)
    names = [name for name in files.list(DIRECTORY) if name.endswith(".log")]
    following = int(names[1][:20])
    content = bytearray(files.read_file(f"{PATH}.log") or b"")
    size = len(content) // following
    content[2 * size + 7] += 1  # the base offset of the third batch
    content[3 * size + 70] ^= 1  # the records of the fourth
    files.write_file(f"{PATH}.log", bytes(content))
    log = open_log(files, clean=False)
    assert log.log_end_offset == 2
    assert list(raw_batches(log)) == [0, 1]
    assert log.recovery.removed_segments == len(names) - 1
    again = open_log(files, clean=False, recovery_point=2)
    assert (again.log_end_offset, again.recovery.truncated_bytes) == (2, 0)


def test_upkeep_writes_the_caches_of_segments_that_have_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_files, "CACHES_AFTER_BYTES", 1000)
    files = MemoryFileSystem()
    manager = LogManager.open(files, cluster_id="c", node_id=1, journal=RecordingJournal())
    manager.load([PartitionSpec(PARTITION, b"1" * 16, CONFIG)], NOW_MS)
    log = manager.get(PARTITION)
    assert log is not None
    written = []
    for now_ms, size in ((NOW_MS, 800), (NOW_MS + RETENTION_INTERVAL_MS, 400)):
        append(log, batch_of(size=size))
        manager.tick(now_ms)
        written.append(files.read_file(f"{PATH}.index") is not None)
    assert written == [False, True]


@pytest.mark.parametrize(
    ("age_ms", "seen_age_ms"),
    [(0, 0), (1_000, 1_000), (3_600_000, 3_600_000), (30 * 86_400_000, 82_800_000), (-5_000, 0)],
    ids=["now", "a second", "an hour", "the time of an event", "the future"],
)
def test_a_restart_does_not_make_producers_younger_nor_forgets_one_that_may_repeat_a_batch(
    age_ms: int, seen_age_ms: int
) -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    identity: dict[str, Any] = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}
    batch = batch_of(1, timestamp=NOW_MS - age_ms, **identity)
    append(log, batch)
    sync(log)
    log = open_log(files, clean=False)
    entry = log.producers.get(3)
    assert entry is not None
    assert entry.last_append_ms == NOW_MS - seen_age_ms
    log.expire_producers(NOW_MS + 1)  # as upkeep does after the start
    info = log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    assert info.duplicate
    log.expire_producers(NOW_MS + 86_400_000 + 1)
    assert log.producer_count == 0


def test_a_log_that_lost_more_than_was_deleted_forgets_its_producers() -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    begin(log, 1)
    append(log, batch_of(1, producer_id=2, producer_epoch=0, base_sequence=4))
    size = log.size_bytes
    end(log, 1, committed=True)
    append(log, batch_of(1, producer_id=2, producer_epoch=0, base_sequence=5))
    log.advance_high_watermark(4)
    log.advance_log_start_offset(4)
    log.segments.active.reopen().truncate(size)  # the marker and the second batch were not synced
    log = open_log(files, clean=False, log_start_offset=4)
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)
    assert not log.producers.transactions.open
    append(log, batch_of(1, producer_id=2, producer_epoch=0, base_sequence=6))
