from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c

from headrace.core.log import LogConfig, validate_batch
from headrace.core.log.append.validation import with_log_append_time
from headrace.errors import ApiError, ErrorCode
from headrace.records.batch import MAX_RECORDS, TimestampType, check_batch
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.compression import Compression
from headrace.records.reader import read_records
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.logs import NOW_MS, append, batch_of, open_log

LIMIT = 1_048_588


def check(
    batch: bytes, limit: int = LIMIT, kind: TimestampType = TimestampType.CREATE_TIME
) -> None:
    validate_batch(memoryview(batch), limit, kind)


def refused(
    batch: bytes, limit: int = LIMIT, kind: TimestampType = TimestampType.CREATE_TIME
) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        check(batch, limit, kind)
    assert caught.value.args
    return ErrorCode(caught.value.code)


def patched(batch: bytes, layout: str, position: int, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


@pytest.mark.parametrize("compression", list(Compression))
def test_sound_batches_pass(compression: Compression) -> None:
    records = [(None, None, (), NOW_MS)] * 50  # the smallest records there are
    check(build_batch(records, compression=compression))
    check(
        build_batch(
            records, compression=compression, producer_id=0, producer_epoch=0, base_sequence=0
        )
    )


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"x" * 10, ErrorCode.INVALID_RECORD),
        (batch_of()[:60], ErrorCode.INVALID_RECORD),
        (batch_of()[:-1], ErrorCode.INVALID_RECORD),
        (batch_of() * 2, ErrorCode.INVALID_RECORD),
        (batch_of() + b"x", ErrorCode.INVALID_RECORD),
        (patched(batch_of(), ">b", 16, 1), ErrorCode.INVALID_RECORD),
        (patched(batch_of(), ">b", 16, 3), ErrorCode.CORRUPT_MESSAGE),
        (patched(batch_of(), ">b", 16, -1), ErrorCode.CORRUPT_MESSAGE),
        (patched(batch_of(), ">b", 16, 0)[:40], ErrorCode.INVALID_RECORD),
        (patched(batch_of(), ">i", 8, 10), ErrorCode.CORRUPT_MESSAGE),
        (patched(batch_of(), ">q", 0, 5), ErrorCode.INVALID_RECORD),
        (patched(batch_of(3), ">i", 23, 1), ErrorCode.INVALID_RECORD),
        (patched(batch_of(3), ">i", 57, 2), ErrorCode.INVALID_RECORD),
        (patched(patched(batch_of(), ">i", 57, 0), ">i", 23, -1), ErrorCode.INVALID_RECORD),
        (
            patched(patched(batch_of(), ">i", 57, 10**6), ">i", 23, 10**6 - 1),
            ErrorCode.INVALID_RECORD,
        ),
        (patched(batch_of(), ">h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (patched(batch_of(), ">h", 21, 0x20), ErrorCode.INVALID_RECORD),
        (patched(batch_of(), ">h", 21, 0x10), ErrorCode.INVALID_RECORD),  # and no producer id
        (patched(batch_of(), ">h", 21, 0x08), ErrorCode.INVALID_TIMESTAMP),
        (batch_of(producer_id=1, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (batch_of(producer_id=1, producer_epoch=-1, base_sequence=0), ErrorCode.INVALID_RECORD),
        (BatchBuilder().build(), ErrorCode.INVALID_RECORD),
    ],
)
def test_an_invalid_batch_is_refused(batch: bytes, code: ErrorCode) -> None:
    assert refused(batch) == code


def test_the_crc_is_checked() -> None:
    batch = bytearray(batch_of())
    batch[-1] ^= 1
    assert refused(bytes(batch)) == ErrorCode.CORRUPT_MESSAGE


def test_the_size_limit_is_exact() -> None:
    batch = batch_of(3)
    check(batch, len(batch))
    assert refused(batch, len(batch) - 1) == ErrorCode.MESSAGE_TOO_LARGE


def smallest(count: int, compression: Compression) -> bytes:
    """Return a batch of the smallest records, with as few as are needed to be encoded."""
    records = [(None, None, (), NOW_MS)] * count
    return bytes(build_batch(records, compression=compression))


@pytest.mark.parametrize("compression", [each for each in Compression if each])
def test_the_records_that_a_compressed_batch_claims_are_bounded(compression: Compression) -> None:
    batch = smallest(2, compression)
    most = patched(patched(batch, ">i", 57, MAX_RECORDS), ">i", 23, MAX_RECORDS - 1)
    check(most)  # whether they are there is not looked at
    more = patched(patched(batch, ">i", 57, MAX_RECORDS + 1), ">i", 23, MAX_RECORDS)
    assert refused(more) == ErrorCode.MESSAGE_TOO_LARGE


def test_no_sound_batch_of_the_default_size_has_too_many_records() -> None:
    batch = smallest(117_421, Compression.NONE)
    assert len(batch) > LIMIT
    assert refused(batch) == ErrorCode.MESSAGE_TOO_LARGE
    check(smallest(117_420, Compression.NONE))
    check(smallest(MAX_RECORDS, Compression.NONE), limit=2 * LIMIT)
    assert refused(smallest(MAX_RECORDS + 1, Compression.NONE), 2 * LIMIT) == (
        ErrorCode.MESSAGE_TOO_LARGE
    )


def test_append_time_in_a_batch_is_fine_where_the_broker_sets_it_anyway() -> None:
    check(patched(batch_of(), ">h", 21, 0x08), kind=TimestampType.LOG_APPEND_TIME)


@pytest.mark.parametrize("compression", list(Compression))
def test_log_append_time_is_written_into_the_batch(compression: Compression) -> None:
    batch = build_batch([(b"k", b"v", (), 5), (None, None, (), 9)], compression=compression)
    stamped = with_log_append_time(batch, NOW_MS)
    header = check_batch(stamped)
    assert header.timestamp_type == TimestampType.LOG_APPEND_TIME
    assert (header.base_timestamp, header.max_timestamp) == (5, NOW_MS)
    assert [record.timestamp for record in read_records(stamped)] == [NOW_MS, NOW_MS]
    assert check_batch(batch).max_timestamp == 9  # the producer's is untouched


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("batch", "taken"),
    [
        (batch_of(1, timestamp=NOW_MS + HOUR_MS), True),
        (batch_of(1, timestamp=NOW_MS + HOUR_MS + 1), False),
        (batch_of(2, timestamp=NOW_MS + HOUR_MS), False),  # the second is a millisecond later
        (batch_of(1, timestamp=NOW_MS - HOUR_MS), True),
        (batch_of(1, timestamp=NOW_MS - HOUR_MS - 1), False),
        (batch_of(2, timestamp=NOW_MS - HOUR_MS - 1), False),
        (build_batch([(None, b"", (), -1)]), True),  # without a timestamp
        (build_batch([(None, b"", (), -2)]), False),
    ],
)
def test_timestamps_far_off_are_refused(batch: bytes, *, taken: bool) -> None:
    limits: dict[str, Any] = {
        "message_timestamp_before_max_ms": HOUR_MS,
        "message_timestamp_after_max_ms": HOUR_MS,
    }
    log = open_log(MemoryFileSystem(), LogConfig(**limits))
    if taken:
        append(log, batch)
    else:
        with pytest.raises(
            ApiError, match=r"message\.timestamp\.(before|after)\.max\.ms"
        ) as caught:
            append(log, batch)
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert log.log_end_offset == 0
    log.append(batch, leader_epoch=0, now_ms=NOW_MS, validate=False)  # the broker's own
    stamped = LogConfig(**limits, message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    append(open_log(MemoryFileSystem(), stamped), batch)


def test_by_default_timestamps_may_be_an_hour_ahead_and_any_time_ago() -> None:
    log = open_log(MemoryFileSystem())
    append(log, batch_of(timestamp=0))
    append(log, batch_of(timestamp=NOW_MS + HOUR_MS))
    with pytest.raises(ApiError, match="ahead of the broker's clock"):
        append(log, batch_of(timestamp=NOW_MS + HOUR_MS + 1))


def test_a_late_record_within_a_batch_is_not_looked_for() -> None:
    """The documented difference from Kafka: only the first record's timestamp and the largest stand in the header."""
    records = [(None, b"", (), NOW_MS), (None, b"", (), NOW_MS - 2 * HOUR_MS)]
    log = open_log(MemoryFileSystem(), LogConfig(message_timestamp_before_max_ms=HOUR_MS))
    append(log, build_batch(records))
    with pytest.raises(ApiError, match="behind the broker's clock"):
        append(log, build_batch(records[::-1]))
