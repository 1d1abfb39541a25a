"""The division of a batch into two parts: no record is lost, and a retry is always divided in the same way."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.scheduled.division import divide, may_be_scheduled
from headrace.core.scheduled.release import build_release, released_offset
from headrace.core.scheduled.schedule_batch import (
    ENTRY,
    NOTHING,
    Mark,
    ReleasePoint,
    Waiting,
    decode_mark,
    encode_mark,
    entries_of,
)
from headrace.errors import CorruptRecordError
from headrace.records.batch import HEADER_SIZE, BatchHeader, check_batch
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.reader import read_batch

NOW_MS = 1_700_000_000_000
AFTER = (("headrace.delay-ms", b"100"),)
RECORDS = [
    (b"k0", b"now", (), NOW_MS - 5),
    (b"k1", b"later", AFTER, NOW_MS - 7),
    (None, None, (("h", None), ("g", b"")), NOW_MS + 9),
    (b"k" * 200, b"v" * 5000, AFTER, NOW_MS),
]
IDENTITY: dict[str, Any] = {"producer_id": 4, "producer_epoch": 1, "base_sequence": 90}


def waiting_of(later: bytes) -> list[Waiting]:
    header = check_batch(later)
    found: list[Waiting] = []
    for entry in entries_of(later, 0, 0):
        due_ms, offset, position, size, _ = ENTRY.unpack(entry)
        assert offset == len(found)
        found.append(Waiting(due_ms, later[position : position + size]))
    assert header.last_offset_delta == len(found) - 1
    return found


@pytest.mark.parametrize("codec", list(Compression))
def test_both_parts_have_the_producers_identity_and_all_records(codec: Compression) -> None:
    batch = build_batch(RECORDS, compression=codec, **IDENTITY)
    assert may_be_scheduled(batch)
    divided = divide(batch, now_ms=NOW_MS, max_delay_ms=1000)
    assert divided is not None
    header, now = read_batch(divided.now)
    assert [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in now] == [
        (number, stamp, key, value, headers)
        for number, (key, value, headers, stamp) in enumerate(RECORDS)
        if headers != AFTER
    ]
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 90)
    assert header.last_sequence == 93
    later = BatchHeader.parse(divided.later)
    assert (later.producer_id, later.producer_epoch, later.base_sequence) == (4, 1, 90)
    waiting = waiting_of(divided.later)
    assert [due for due, _ in waiting] == [NOW_MS + 100] * 2 == [divided.earliest_ms] * 2
    released = build_release(waiting, 77, 1 << 20)
    header, records = read_batch(released)
    assert released_offset(header) == 77
    assert [
        (each.offset, each.timestamp, each.key, each.value, each.headers) for each in records
    ] == [
        (number, NOW_MS + 100, key, value, headers)
        for number, (key, value, headers, _) in enumerate([RECORDS[1], RECORDS[3]])
    ]


def test_a_retry_is_divided_in_the_same_way_though_all_is_due_by_then() -> None:
    batch = build_batch([RECORDS[1]], **IDENTITY)
    first = divide(batch, now_ms=NOW_MS, max_delay_ms=1000)
    again = divide(batch, now_ms=NOW_MS + 50_000, max_delay_ms=1000)
    assert first is not None
    assert again is not None
    for divided in (first, again):
        header = check_batch(divided.now)
        assert header.is_control
        assert (header.last_sequence, header.records_count) == (90, 1)


def test_a_batch_without_scheduled_records_is_not_divided() -> None:
    named = build_batch([(b"headrace.delay-ms", b"headrace.deliver-at-ms", (), 0)])
    assert may_be_scheduled(named)  # the name is there, and no header
    assert divide(named, now_ms=NOW_MS, max_delay_ms=1000) is None
    assert not may_be_scheduled(build_batch([RECORDS[0]]))
    assert divide(build_batch([RECORDS[0]]), now_ms=NOW_MS, max_delay_ms=1000) is None


def test_a_release_beyond_the_topics_limit_is_compressed() -> None:
    record = divide(
        build_batch([(None, b"x" * 100_000, AFTER, 0)], compression=Compression.GZIP),
        now_ms=NOW_MS,
        max_delay_ms=1000,
    )
    assert record is not None
    batch = build_release(waiting_of(record.later), 0, 50_000)
    header, (found,) = read_batch(batch)
    assert len(batch) < 50_000
    assert header.compression == Compression.GZIP
    assert found.value == b"x" * 100_000


@pytest.mark.parametrize(
    "identity", [{}, IDENTITY, {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0}]
)
def test_no_batch_of_a_client_looks_like_a_release(identity: dict[str, Any]) -> None:
    assert released_offset(BatchHeader.parse(build_batch([RECORDS[0]], **identity))) is None


def test_marks_are_read_as_they_were_written() -> None:
    for mark in (
        Mark(0),
        Mark(7, ReleasePoint(NOW_MS, 12)),
        Mark(9, NOTHING, ((3, ReleasePoint(5, 6)), (9, ReleasePoint(NOW_MS, 1 << 40)))),
    ):
        batch = encode_mark(mark, NOW_MS)
        assert check_batch(batch).is_control
        assert decode_mark(batch) == mark
    with pytest.raises(CorruptRecordError):
        decode_mark(encode_mark(Mark(0), NOW_MS)[: HEADER_SIZE + 20])


def test_an_earlier_release_point_covers_only_records_scheduled_before_it() -> None:
    mark = Mark(0, ReleasePoint(50, 9), ((5, ReleasePoint(100, 4)),))
    assert mark.covers(50, 9)
    assert not mark.covers(50, 10)
    assert mark.covers(100, 4)
    assert not mark.covers(100, 5)
    assert not mark.covers(101, 1)


def test_the_placeholder_of_a_wholly_scheduled_batch_has_a_record_at_its_last_offset() -> None:
    later = [(b"k", b"v", AFTER, NOW_MS)] * 300
    divided = divide(build_batch(later, **IDENTITY), now_ms=NOW_MS, max_delay_ms=1000)
    assert divided is not None
    header, (record,) = read_batch(divided.now)
    assert header.is_control
    assert header.last_offset == record.offset == 299
    assert record.timestamp == header.base_timestamp == header.max_timestamp == NOW_MS
