"""Lookups by time do a bounded amount of work in each step, also on batches that only earlier versions appended."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from headrace.core.log import LogConfig, PartitionLog, lookup_newest, lookup_timestamp
from headrace.core.log.reading import time_lookup
from headrace.core.log.reading.time_lookup import LOOK_BYTES, MOST_BATCHES, TimestampOffset, at_once
from headrace.records.batch import MAX_RECORDS, BatchHeader
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.raw import records_of
from headrace.storage.memory_files import MemoryFileSystem
from headrace.types import Buffer
from tests.fixtures.logs import NOW_MS, open_log


def batch_at(times: list[int], compression: Compression = Compression.NONE, size: int = 3) -> bytes:
    return build_batch([(None, b"v" * size, (), time) for time in times], compression=compression)


def patched(batch: bytes, layout: str, position: int, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def claiming(count: int, times: list[int]) -> bytes:
    """Return a compressed batch of an earlier version, which took any number of records."""
    batch = batch_at(times, Compression.ZSTD)
    return patched(patched(batch, ">i", 57, count), ">i", 23, count - 1)


def lying(largest_ms: int) -> bytes:
    """Return a batch whose header has a larger timestamp than its records."""
    return patched(batch_at([NOW_MS, NOW_MS + 1]), ">q", 35, largest_ms)


def put(log: PartitionLog, batch: bytes) -> int:
    return log.append(batch, leader_epoch=0, now_ms=NOW_MS, validate=False).base_offset


class Looks:
    """Counts the batches that are looked into."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def counted(header: BatchHeader, batch: Buffer, limit: int) -> bytes:
            self.count += 1
            return records_of(header, batch, limit)

        monkeypatch.setattr(time_lookup, "records_of", counted)


@pytest.fixture
def log() -> PartitionLog:
    return open_log(MemoryFileSystem(), LogConfig(segment_bytes=4000))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def test_a_batch_with_more_records_than_the_limit_is_not_decoded(
    log: PartitionLog, looks: Looks
) -> None:
    put(log, batch_at([NOW_MS]))
    put(log, claiming(MAX_RECORDS + 1, [NOW_MS + 5, NOW_MS + 9]))
    assert log.offset_for_timestamp(NOW_MS + 7) == TimestampOffset(1, NOW_MS + 9, 0)
    assert log.offset_of_max_timestamp() == TimestampOffset(1, NOW_MS + 9, 0)
    log.advance_high_watermark(log.log_end_offset)
    log.advance_log_start_offset(100)  # in the middle of the batch
    assert log.offset_for_timestamp(NOW_MS + 7) == TimestampOffset(100, NOW_MS + 9, 0)
    assert log.offset_of_max_timestamp() == TimestampOffset(100, NOW_MS + 9, 0)
    assert looks.count == 0


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_a_batch_that_decompresses_to_too_much_is_answered_with_its_start(
    log: PartitionLog, compression: Compression
) -> None:
    noise = random.Random(1).randbytes(20_000)  # or they would be refused for their ratio
    for size, start in ((LOOK_BYTES // 2 + 100, NOW_MS), (LOOK_BYTES // 2 - 100, NOW_MS + 2)):
        value = noise + bytes(size - len(noise))
        records = [(None, value, (), time) for time in (start, start + 1)]
        put(log, build_batch(records, compression=compression))
    assert log.offset_for_timestamp(NOW_MS + 1) == TimestampOffset(0, NOW_MS + 1, 0)
    assert log.offset_for_timestamp(NOW_MS + 3) == TimestampOffset(3, NOW_MS + 3, 0)


def test_batches_with_a_false_largest_timestamp_are_decoded_a_few_times(
    log: PartitionLog, looks: Looks
) -> None:
    offsets = [put(log, lying(NOW_MS + 1000)) for _ in range(5 * MOST_BATCHES)]
    exact = put(log, batch_at([NOW_MS + 500]))
    found = log.offset_for_timestamp(NOW_MS + 400)
    assert found is not None
    assert looks.count == MOST_BATCHES
    assert (
        found.offset == offsets[MOST_BATCHES] <= exact
    )  # no reader who begins there misses a record


def test_a_few_batches_with_a_false_largest_timestamp_are_skipped(log: PartitionLog) -> None:
    for _ in range(MOST_BATCHES - 1):
        put(log, lying(NOW_MS + 1000))
    exact = put(log, batch_at([NOW_MS + 500]))
    assert log.offset_for_timestamp(NOW_MS + 400) == (exact, NOW_MS + 500, 0)


def test_a_long_walk_over_headers_is_done_in_steps(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_lookup, "_HEADERS_AT_ONCE", 4)
    put(log, lying(NOW_MS + 1000))
    for _ in range(300):
        put(log, batch_at([NOW_MS, NOW_MS + 1]))
    exact = put(log, batch_at([NOW_MS + 400, NOW_MS + 900]))
    steps = list(lookup_timestamp(log.segments, NOW_MS + 400, 0))
    assert len(steps) > 300 // 4 // len(log.segments.all)
    assert at_once(lookup_timestamp(log.segments, NOW_MS + 400, 0)) == (exact, NOW_MS + 400, 0)
    log.advance_high_watermark(log.log_end_offset)
    log.advance_log_start_offset(exact + 1)
    assert at_once(lookup_newest(log.segments, exact + 1)) == (exact + 1, NOW_MS + 900, 0)


def test_the_log_may_change_between_two_steps(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_lookup, "_HEADERS_AT_ONCE", 2)
    put(log, lying(NOW_MS + 1000))
    for _ in range(300):
        put(log, batch_at([NOW_MS, NOW_MS + 1]))
    lookup = lookup_timestamp(log.segments, NOW_MS + 400, 0)
    for _ in range(20):
        next(lookup)
    assert log.segment_count > 3
    log.advance_high_watermark(log.log_end_offset)
    log.advance_log_start_offset(log.log_end_offset)
    log.segments.drop_oldest(log.segment_count - 1)
    log.segments.purge()
    exact = put(log, batch_at([NOW_MS + 700]))
    assert at_once(lookup) == (exact, NOW_MS + 700, 0)


@pytest.mark.parametrize("seed", range(40))
def test_a_time_lookup_equals_a_scan_of_the_whole_log(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = random.Random(seed)
    monkeypatch.setattr(time_lookup, "_HEADERS_AT_ONCE", choice.choice([1, 3, 50]))
    log = open_log(MemoryFileSystem(), LogConfig(segment_bytes=choice.choice([700, 3000])))
    records: list[tuple[int, int]] = []
    lies = 0
    for _ in range(choice.randrange(1, 60)):
        times = [NOW_MS + choice.randrange(200) for _ in range(choice.randrange(1, 9))]
        batch = batch_at(times, choice.choice(list(Compression)))
        if choice.random() < 0.1 and lies < MOST_BATCHES:
            batch, lies = patched(batch, ">q", 35, NOW_MS + 300), lies + 1
        start = put(log, batch)
        records += [(start + number, time) for number, time in enumerate(times)]
    log.advance_high_watermark(log.log_end_offset)
    log.advance_log_start_offset(choice.randrange(log.log_end_offset))
    kept = [record for record in records if record[0] >= log.log_start_offset]
    for wanted in range(NOW_MS - 1, NOW_MS + 301, 7):
        expected = next((record for record in kept if record[1] >= wanted), None)
        found = log.offset_for_timestamp(wanted)
        assert (None if found is None else found[:2]) == expected
    if not lies:
        newest = max(time for _, time in kept)
        expected = next(record for record in kept if record[1] == newest)
        found = log.offset_of_max_timestamp()
        assert found is not None
        assert found[:2] == expected
