"""One round of compaction: the records that stay, the segments that may be compacted, and their replacement."""

from __future__ import annotations

import pytest

from headrace.core.log import LogConfig, PartitionLog, Segment
from headrace.core.log.cleaning.cleanable import plan_compaction
from headrace.core.log.cleaning.compaction import Compaction
from headrace.core.log.segments.replacement import install
from headrace.errors import ApiError, CorruptRecordError, ErrorCode
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.compression import Compression
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.compaction import keyed, latest, put, run_round, settle
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.logs import DIRECTORY, NOW_MS, append, open_log, raw_batches, records_of

DAY_MS = 24 * 3600 * 1000
CONFIG = LogConfig(
    compacts=True, retention_ms=-1, min_cleanable_dirty_ratio=0.0, index_interval_bytes=64
)


def config(**options) -> LogConfig:
    values = {name: getattr(CONFIG, name) for name in LogConfig.__slots__}
    return LogConfig(**values | options)


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def log(files: MemoryFileSystem) -> PartitionLog:
    return open_log(files, CONFIG)


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in records_of(log)]


def roll(log: PartitionLog) -> None:
    log.roll(NOW_MS)


# What stays


def test_the_last_record_of_each_key_stays_where_it_is(files, log) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    put(log, (b"c", b"1"))
    put(log, (b"b", b"2"), (b"a", b"3"))
    roll(log)
    put(log, (b"c", b"2"))  # in the active segment: not looked at
    task = run_round(files, log)
    assert task is not None
    assert (task.stats.records_before, task.stats.records_after) == (6, 3)
    assert [(r.offset, r.key, r.value) for r in records_of(log)] == [
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"a", b"3"),
        (6, b"c", b"2"),
    ]
    assert task.clean_end_offset == 6


def test_a_batch_keeps_its_bounds_sequence_epoch_and_codec(files, log) -> None:
    put(
        log,
        (b"a", b"x" * 100),
        (b"b", b"y" * 100),
        (b"a", b"z"),
        (b"c", b"w"),
        (b"b", b"v"),
        compression=Compression.LZ4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
        leader_epoch=5,
    )
    put(log, (b"c", b"newer"), leader_epoch=5)
    roll(log)
    before = check_batch(raw_batches(log)[0])
    run_round(files, log)
    after = check_batch(raw_batches(log)[0])  # its CRC too
    for name in (
        "base_offset",
        "last_offset_delta",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "partition_leader_epoch",
        "compression",
        "base_timestamp",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert after.records_count == 2
    assert offsets(log) == [2, 4, 5]


def test_unchanged_batches_stay_identical_byte_by_byte(files, log) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"b", b"1"), compression=Compression.ZSTD)
    put(log, (b"a", b"2"))
    roll(log)
    before = raw_batches(log)
    run_round(files, log)
    after = raw_batches(log)
    assert after[1] == before[1]
    assert after[2] == before[2]


def test_compaction_writes_no_file_for_an_unchanged_segment(tmp_path) -> None:
    files = OsFileSystem(tmp_path)
    log = open_log(files, config(segment_bytes=150))
    for number in range(4):
        put(log, (b"%d" % number, b"v" * 60))
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.log")}
    task = run_round(files, log)
    assert task is not None
    assert task.finished
    assert task.stats.replaced_segments == 0
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.log")} == before
    assert not list(tmp_path.rglob("*.cleaned"))


def test_compaction_deletes_records_without_a_key(files) -> None:
    log = open_log(files, config(compacts=False))
    put(log, (None, b"1"), (b"a", b"1"), (None, b"2"))
    roll(log)
    log.config = CONFIG
    run_round(files, log)
    assert offsets(log) == [1]


def test_the_largest_timestamp_is_that_of_the_records_that_stay(files, log) -> None:
    put(log, (b"a", b"1"), timestamp=NOW_MS + 900)
    put(log, (b"b", b"1"), timestamp=NOW_MS + 100)
    put(log, (b"a", b"2"), timestamp=NOW_MS + 300)
    put(log, (b"b", b"2"), (b"c", b"1"), timestamp=NOW_MS + 50)
    roll(log)
    run_round(files, log)
    newest = log.offset_of_max_timestamp()
    assert newest is not None
    assert (newest.offset, newest.timestamp) == (2, NOW_MS + 300)
    found = log.offset_for_timestamp(NOW_MS + 60)
    assert found is not None
    assert found.offset == 2
    assert log.offset_for_timestamp(NOW_MS + 301) is None


def test_long_keys_that_share_a_beginning_are_distinguished(files, log) -> None:
    keys = [b"k" * 300 + b"%d" % number for number in range(50)]
    for key in [*keys, *keys]:
        put(log, (key, b"v"))
    roll(log)
    run_round(files, log)
    assert [record.key for record in records_of(log)] == keys


# Tombstones


def test_a_tombstone_is_kept_for_the_delete_retention_after_its_first_round(files, log) -> None:
    put(log, (b"a", b"1"), timestamp=NOW_MS - 10 * DAY_MS)
    put(log, (b"a", None), (b"b", b"1"), timestamp=NOW_MS - 9 * DAY_MS)
    roll(log)
    put(log, (b"z", b""))
    roll(log)
    first = run_round(files, log)
    assert first is not None
    assert [(r.offset, r.key, r.value) for r in records_of(log)][:2] == [
        (1, b"a", None),
        (2, b"b", b"1"),
    ]
    assert records_of(log)[0].timestamp == NOW_MS - 9 * DAY_MS  # though its batch has a horizon now
    clean = first.clean_end_offset
    for now_ms, expected in [
        (NOW_MS + DAY_MS - 1, [1, 2, 3]),
        (NOW_MS + DAY_MS, [2, 3]),
    ]:
        put(log, (b"z", b""))
        roll(log)
        second = run_round(files, log, clean, now_ms=now_ms)
        assert second is not None
        clean = second.clean_end_offset
        assert [offset for offset in offsets(log) if offset < 4][: len(expected) - 1] == expected[
            :-1
        ]
    assert latest(log) == {b"b": b"1", b"z": b""}


def test_a_horizon_counts_from_the_first_round_only(files, log) -> None:
    put(log, (b"a", None), (b"b", None))
    roll(log)
    run_round(files, log)
    first = check_batch(raw_batches(log)[0])
    assert first.base_timestamp == NOW_MS + DAY_MS
    put(log, (b"b", b"back"))
    roll(log)
    run_round(files, log, 2, now_ms=NOW_MS + 1000)
    again = check_batch(raw_batches(log)[0])
    assert (again.base_timestamp, again.records_count) == (NOW_MS + DAY_MS, 1)
    assert records_of(log)[0].timestamp == NOW_MS


def test_an_overwritten_tombstone_is_removed_at_once(files, log) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    put(log, (b"a", b"2"))
    roll(log)
    run_round(files, log)
    assert latest(log) == {b"a": b"2"}
    assert offsets(log) == [2]


# Headers that stay without records


def test_the_last_batch_of_a_segment_keeps_its_header(files, log) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), (b"a", b"3"))
    roll(log)
    put(log, (b"a", b"4"))
    roll(log)
    run_round(files, log)
    assert log.segment_count == 2
    reopened = open_log(files, CONFIG, clean=False, recovery_point=4)
    assert raw_batches(reopened) == raw_batches(log)
    assert reopened.log_end_offset == 4


def test_a_producer_that_is_remembered_can_be_read_from_the_log_again(files, log) -> None:
    for sequence in range(8):
        put(log, (b"a", b"v"), producer_id=9, producer_epoch=1, base_sequence=sequence)
    put(log, (b"a", b"last"))
    roll(log)
    settle(log)
    run_round(files, log)
    assert latest(log) == {b"a": b"last"}
    for name in files.list(DIRECTORY):
        if name.endswith((".snapshot", ".index")):
            files.remove(f"{DIRECTORY}/{name}")
    again = open_log(files, CONFIG, clean=False, recovery_point=log.log_end_offset)
    for sequence in range(3, 8):  # the five that a retry may repeat
        retry = keyed((b"a", b"v"), producer_id=9, producer_epoch=1, base_sequence=sequence)
        info = again.append(retry, leader_epoch=0, now_ms=NOW_MS)
        assert (info.duplicate, info.base_offset) == (True, sequence)


def test_headers_are_dropped_with_their_producers(files, log) -> None:
    put(log, (b"a", b"v"), producer_id=9, producer_epoch=1, base_sequence=0)
    put(log, (b"b", b"v"), producer_id=8, producer_epoch=1, base_sequence=0)
    put(log, (b"a", b"w"), (b"b", b"w"))
    roll(log)
    log.expire_producers(NOW_MS + 2 * DAY_MS)
    run_round(files, log)
    found = [check_batch(batch).base_offset for batch in all_batches(files)]
    assert found == [0, 2]  # 0 begins the leader epoch


def test_leader_epochs_can_be_read_from_the_log_again(files, log) -> None:
    for epoch in (0, 3, 4):
        put(log, (b"a", b"1"), leader_epoch=epoch)
        put(log, (b"a", b"2"), leader_epoch=epoch)
    roll(log)
    expected = log.epochs.entries
    run_round(files, log)
    files.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    again = open_log(files, CONFIG, clean=False, recovery_point=log.log_end_offset)
    assert again.epochs.entries == expected
    assert again.end_offset_for_epoch(3) == log.end_offset_for_epoch(3) == (3, 4)


def test_a_leader_epoch_that_begins_at_the_log_start_can_be_read_again(files, log) -> None:
    for number in range(30):
        key = b"a" if number else b"only once"
        put(log, (key, b"%d" % number), (b"a", b"v"), leader_epoch=number // 10)
    roll(log)
    log.advance_log_start_offset(25)  # inside an epoch, and inside a batch
    log.purge()
    assert log.epochs.entries == [(1, 25), (2, 40)]
    run_round(files, log)
    files.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    again = open_log(files, CONFIG, clean=False, log_start_offset=25)
    assert again.end_offset_for_epoch(1) == (1, 40)


# What may be compacted


def test_the_active_segment_is_never_compacted(files, log) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    assert plan_compaction(log, 0, NOW_MS) is None


def test_records_that_are_not_durable_or_not_visible_are_not_compacted(files, log) -> None:
    append(log, keyed((b"a", b"1")))
    append(log, keyed((b"a", b"2")))
    roll(log)
    assert plan_compaction(log, 0, NOW_MS) is None
    log.advance_high_watermark(2)
    assert plan_compaction(log, 0, NOW_MS) is None  # visible, and not durable
    settle(log)
    assert plan_compaction(log, 0, NOW_MS) is not None
    log.high_watermark = 1
    assert plan_compaction(log, 0, NOW_MS) is None  # durable, and not visible


def test_a_share_of_dirty_bytes_has_to_be_exceeded(files) -> None:
    log = open_log(files, config(min_cleanable_dirty_ratio=0.5))
    for key in (b"a", b"b", b"c", b"d"):
        put(log, (key, b"v"))
        roll(log)
    assert plan_compaction(log, 2, NOW_MS) is None  # just half
    assert plan_compaction(log, 4, NOW_MS) is None  # nothing dirty
    plan = plan_compaction(log, 1, NOW_MS)
    assert plan is not None
    assert plan.dirty_ratio == 0.75
    assert plan.end_offset == 4


def test_compaction_stops_at_the_first_young_record(files) -> None:
    log = open_log(files, config(min_compaction_lag_ms=1000))
    for age in (5000, 500, 5000):
        put(log, (b"a", b"v"), timestamp=NOW_MS - age)
        roll(log)
    plan = plan_compaction(log, 0, NOW_MS)
    assert plan is not None
    assert plan.end_offset == 1
    assert plan_compaction(log, 1, NOW_MS) is None
    later = plan_compaction(log, 0, NOW_MS + 501)
    assert later is not None
    assert later.end_offset == 3


def test_old_dirty_records_are_compacted_below_the_minimum_ratio(files) -> None:
    log = open_log(files, config(min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=1000))
    put(log, (b"a", b"v" * 500), timestamp=NOW_MS)
    roll(log)
    put(log, (b"b", b"v"), timestamp=NOW_MS)
    roll(log)
    assert plan_compaction(log, 1, NOW_MS + 1000) is None
    plan = plan_compaction(log, 1, NOW_MS + 1001)
    assert plan is not None
    assert plan.overdue
    assert plan_compaction(log, 2, NOW_MS + DAY_MS) is None  # nothing dirty


def test_a_compacted_log_refuses_records_without_a_key(files, log) -> None:
    for compression in Compression:
        batch = keyed((b"a", b"1"), (None, b"2"), compression=compression)
        with pytest.raises(ApiError) as caught:
            append(log, batch)
        assert caught.value.code == ErrorCode.INVALID_RECORD
    append(log, keyed((b"", b"an empty key is a key")))
    damaged = bytearray(keyed((b"a", b"1")))
    damaged[-1] ^= 1
    with pytest.raises(ApiError) as caught:
        append(log, bytes(damaged))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


# Rounds


def test_a_dirty_part_with_too_many_keys_needs_several_rounds(files, log) -> None:
    for _ in range(2):
        for start in range(0, 60, 6):
            put(log, *((b"%d" % key, b"v") for key in range(start, start + 6)))
    roll(log)
    clean, rounds = 0, 0
    while (task := run_round(files, log, clean, max_keys=17)) is not None:
        assert clean < task.clean_end_offset <= clean + 17 + 60
        clean, rounds = task.clean_end_offset, rounds + 1
        assert latest(log) == {b"%d" % key: b"v" for key in range(60)}
    assert clean == 120
    assert rounds >= 120 // 17
    assert offsets(log) == list(range(60, 120))


def test_small_neighbours_become_one_segment(files) -> None:
    log = open_log(files, config(segment_bytes=1000))
    for number in range(40):
        put(log, (b"%d" % (number % 3), b"v" * 100))
    before = log.segment_count
    clean = 0
    for _ in range(4):  # each round merges by the sizes that it finds
        task = run_round(files, log, 0)
        assert task is not None
        clean = task.clean_end_offset
    assert log.segment_count == 2 < before
    assert clean == log.segments.active.base_offset
    names = [name for name in files.list(DIRECTORY) if name.endswith(".log")]
    assert len(names) == 2
    assert {r.offset for r in records_of(log)} >= {37, 38, 39}
    put(log, (b"0", b"goes on"))
    assert latest(log)[b"0"] == b"goes on"


def test_no_step_is_longer_than_its_bound(files) -> None:
    log = open_log(files, config(segment_bytes=1 << 22))
    for number in range(300):
        put(log, *((b"%d" % key, b"v" * 2000) for key in range(number % 5, number % 5 + 5)))
    roll(log)
    plan = plan_compaction(log, 0, NOW_MS)
    assert plan is not None
    task = Compaction(files, plan, now_ms=NOW_MS, max_keys=1000)
    steps = 0
    while not task.finished:
        task.run()
        steps += 1
    assert steps >= 2 * sum(segment.size for segment in plan.segments) // (300 << 10)


def test_readers_in_the_middle_finish(files, tmp_path) -> None:
    for kind in (files, OsFileSystem(tmp_path)):
        log = open_log(kind, CONFIG)
        for _ in range(3):
            put(log, (b"a", b"v" * 50))
        roll(log)
        held = log.read(0, max_bytes=10_000, up_to=3, minimum_one=True)
        assert held is not None
        expected = held.read()
        run_round(kind, log)
        assert held.read() == expected
        assert offsets(log) == [2]


def test_a_read_can_begin_at_every_offset(files) -> None:
    log = open_log(files, config(segment_bytes=400))
    for number in range(60):
        put(log, (b"%d" % (number % 4), b"v"), (b"%d" % (number % 7), b"w"))
    run_round(files, log)
    batches = sorted(
        (header.base_offset, header.next_offset, header.records_count)
        for header in map(check_batch, raw_batches(log).values())
    )
    for offset in range(120):
        for max_bytes in (1, 300, 10_000):
            found = log.read(offset, max_bytes=max_bytes, up_to=120, minimum_one=True)
            assert found is not None
            header = check_batch(found.read())
            expected = next(found for found in batches if found[1] > offset and found[2])
            assert (header.base_offset, header.next_offset, header.records_count) == expected


def test_batches_without_records_are_passed_over_unless_nothing_else_follows(files) -> None:
    log = open_log(files, config(segment_bytes=100))
    for number in range(30):  # a segment for each, of which a header stays
        put(log, (b"k", b"%d" % number), producer_id=7, producer_epoch=0, base_sequence=number)
    run_round(files, log)
    counts = [check_batch(batch).records_count for batch in all_batches(files)]
    assert counts == [0] * 28 + [1, 1]
    found = log.read(0, max_bytes=10_000, up_to=30, minimum_one=True)
    assert found is not None
    assert check_batch(found.read()).base_offset == 28
    # A reader that may not see the remaining records advances nevertheless.
    offset = 0
    while offset < 20:
        found = log.read(offset, max_bytes=10_000, up_to=20, minimum_one=True)
        assert found is not None
        offset = check_batch(found.read()).next_offset
    assert log.read(20, max_bytes=10_000, up_to=20, minimum_one=True) is None


def all_batches(files) -> list[bytes]:
    """Return the batches as they lie in the segment files, one after the other."""
    return [
        content[position : position + header.size]
        for name in files.list(DIRECTORY)
        if name.endswith(".log")
        for content in [files.read_file(f"{DIRECTORY}/{name}")]
        for position, header in iterate_headers(content)
    ]


@pytest.mark.parametrize("byte", [0, 7, 9, 16, 20, 30, 69, 70, 139])
def test_a_damaged_batch_stops_the_round(files, log, byte: int) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    roll(log)
    path = f"{DIRECTORY}/{0:020d}.log"
    content = bytearray(files.read_file(path))
    content[byte] ^= 1
    files.write_file(path, bytes(content))
    plan = plan_compaction(log, 0, NOW_MS)
    assert plan is not None
    task = Compaction(files, plan, now_ms=NOW_MS, max_keys=10)
    with pytest.raises(CorruptRecordError):
        task.run()
    assert task.replacement is None


# Replacing segments


def to_compact(files: CrashFileSystem, **options) -> tuple[PartitionLog, Compaction]:
    log = open_log(files, config(**options))
    for number in range(12):
        put(log, (b"a", b"%d" % number), (b"b%d" % (number % 2), b"v"))
    roll(log)
    settle(log)
    plan = plan_compaction(log, 0, NOW_MS)
    assert plan is not None
    return log, Compaction(files, plan, now_ms=NOW_MS, max_keys=1000)


def test_only_the_thread_waits_for_the_disk() -> None:
    files = CrashFileSystem()
    log, task = to_compact(files, segment_bytes=400)
    seen: list[str] = []
    files.fault = lambda kind, _path: seen.append(kind)
    replaced = 0
    while not task.finished:
        task.run()
        seen.clear()
        log.segments.settle()
        if task.replacement is not None:
            install(files, log.segments, task.replacement, interval=64)
            task.replacement = None
            replaced += 1
        assert not {"sync", "sync_directory", "rename", "write_file"} & set(seen)
    assert replaced > 1
    assert len(latest(log)) == 3


def is_open(segment: Segment) -> bool:
    return segment.file is not None


def test_a_compacted_segment_stays_readable_until_it_has_its_final_name() -> None:
    files = CrashFileSystem()
    log, task = to_compact(files)
    while task.replacement is None:
        task.run()
    install(files, log.segments, task.replacement, interval=64)
    task.replacement = None
    compacted = log.segments.all[0]
    for _ in range(3):
        put(log, (b"c", b"v"))
        roll(log)
    log.segments.open_segments.limit = 1
    for offset in range(log.log_end_offset):
        assert log.read(offset, max_bytes=1, up_to=log.log_end_offset, minimum_one=True)
    assert is_open(compacted)
    assert files.list(DIRECTORY)[0].endswith(".log.swap")
    task.run()
    log.segments.settle()
    assert not is_open(compacted)
    assert latest(log) == {b"a": b"11", b"b0": b"v", b"b1": b"v", b"c": b"v"}


def test_a_segment_without_a_name_is_not_removed() -> None:
    """Otherwise the thread would rename a file that the log does not know."""
    files = CrashFileSystem()
    log, task = to_compact(files)
    while task.replacement is None:
        task.run()
    install(files, log.segments, task.replacement, interval=64)
    task.replacement = None
    log.advance_log_start_offset(log.high_watermark)
    assert log.delete_old_segments(NOW_MS) == [0]
    log.purge()
    task.run()
    log.segments.settle()
    log.purge()
    assert [name for name in files.list(DIRECTORY) if ".log" in name] == [f"{24:020d}.log"]
