"""The accelerator: the version that is used, and equal behaviour with and without it."""

from __future__ import annotations

import contextlib
import gc
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

from headrace.clients.consumer.records import CREATE_TIME, ConsumerRecord
from headrace.errors import CorruptRecordError
from headrace.records import accel, builder, decoding, reader
from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.records.builder import BatchBuilder, build_batch, encode_headers
from headrace.records.reader import Record, decode_batch, first_slice
from tests.fixtures.accelerator import built_kernels


@pytest.fixture(params=["Python", "C"], autouse=True)
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = built_kernels() if request.param == "C" else None
    monkeypatch.setattr(decoding, "_decode_fast", kernels and kernels.decode_records)
    monkeypatch.setattr(builder, "_FastWriter", kernels and kernels.RecordWriter)


def damaged(body: bytes, count: int = 1) -> tuple[BatchHeader, bytes]:
    """Return a batch whose records are these bytes. Its CRC is not checked."""
    batch = build_batch([(None, b"", (), 1000)])[:HEADER_SIZE] + body
    header = BatchHeader.parse(batch)
    length = header.batch_length + len(batch) - header.size
    return header._replace(batch_length=length, records_count=count), batch


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "1 records claimed in 0 bytes"),
        (bytes(7), "record of 0 bytes at byte 1 does not fit"),
        (b"\x7e" + bytes(6), "record of 63 bytes at byte 1 does not fit"),
        (b"\xff\xff\xff\xff\xff\x0f\x00", "the varint at byte 0 is too long"),
        (b"\xff" * 4 + b"\x1f" + bytes(2), "the varint at byte 0 is too long"),
        (b"\x0c\x00" + b"\xff" * 5, "a varint at byte 2 is cut off"),
        (b"\x0c\x00\x00\x00\x01\x0e\x00", r"field of 7 bytes at byte 6 does not fit"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", r"field of -2 bytes at byte 5 does not fit"),
        (b"\x0c\x00\x00\x00\x01\x01\x02", "1 headers claimed in 0 bytes"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", "a record header without a key"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "a record's length is off by 1 bytes"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "1 bytes after the last record of a batch"),
    ],
)
def test_the_error_names_the_damage(body: bytes, message: str) -> None:
    header, batch = damaged(body)
    with pytest.raises(CorruptRecordError, match=f"^{message}$"):
        decode_batch(header, batch, 0)


def test_records_of_any_named_tuple_are_made_with_their_offset_and_partition() -> None:
    batch = build_batch([(b"k", b"v", [("h", None)], 1000), (None, None, (), 999)], base_offset=7)
    header = BatchHeader.parse(batch)
    first, second = decode_batch(header, batch, 0)
    assert first == Record(7, 1000, b"k", b"v", (("h", None),))
    assert second == Record(8, 999, None, None, ())
    placed, rest = first_slice(ConsumerRecord, header, batch, 0, ("t", 1), (4, CREATE_TIME, -1))
    assert rest is None
    assert placed == [ConsumerRecord("t", 1, *first, 4), ConsumerRecord("t", 1, *second, 4)]
    assert [type(record) for record in placed] == [ConsumerRecord] * 2
    assert placed[0].leader_epoch == 4
    assert repr(placed[1]).startswith("ConsumerRecord(topic='t', partition=1, offset=8, ")


def test_the_times_of_a_batch_that_the_broker_stamped_are_one() -> None:
    batch = build_batch([(None, b"a", (), 1000), (None, b"b", (), 2000)])
    header = BatchHeader.parse(batch)._replace(attributes=8, max_timestamp=5000)
    assert [record.timestamp for record in decode_batch(header, batch, 0)] == [5000, 5000]


def test_numbers_beyond_64_bits_are_read_as_they_are_claimed() -> None:
    batch = build_batch([(None, b"a", (), 0), (None, b"b", (), 1)])
    header = BatchHeader.parse(batch)._replace(base_offset=2**63 - 1)
    assert [record.offset for record in decode_batch(header, batch, 0)] == [2**63 - 1, 2**63]


def test_a_timestamp_that_no_batch_can_hold_is_refused() -> None:
    for first, second in ((2**63, None), (-(2**63) - 1, None), (0, 2**70), (-(2**62), 2**63 - 1)):
        batch = BatchBuilder()
        if second is None:
            with pytest.raises(ValueError, match="64 bits"):
                batch.append(None, b"v", (), first)
            continue
        assert batch.append(None, b"v", (), first)
        with pytest.raises(ValueError, match="64 bits"):
            batch.append(None, b"v", (), second)
        assert [r.timestamp for r in reader.read_batch(batch.build())[1]] == [first]


def test_empty_headers_leave_the_batch_unchanged() -> None:
    batch = BatchBuilder()
    assert batch.append(None, b"v", (), 1)
    before = batch.build()
    for headers in ([1], [("name", "text")], [(b"name", b"content")], 5):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            batch.append(None, b"w", headers, 1)  # type: ignore[arg-type]  # on purpose
    assert batch.build() == before


def test_a_built_batch_accepts_more_records() -> None:
    batch = BatchBuilder()
    batch.append(b"k", b"v" * 5000, (), 1)
    first = batch.build()
    assert batch.extend([b"a", None, b"c"], 1, 2) == 2
    assert [record.value for record in reader.read_batch(first)[1]] == [b"v" * 5000]
    assert [record.value for record in reader.read_batch(batch.build())[1]][1:] == [None, b"c"]


def test_a_list_is_taken_until_the_batch_is_full() -> None:
    batch = BatchBuilder(max_bytes=1000)
    taken = batch.extend([b"x" * 100] * 50, 0, 5)
    assert (taken, len(batch)) == (8, 8)
    assert batch.extend([b"x" * 100], 0, 5) == 0
    assert batch.size == len(batch.build()) <= 1000


@pytest.mark.slow
def test_the_accelerator_leaks_no_memory() -> None:
    records = [(b"k", b"v" * 50, [("h", b"c")], 1000)] * 50
    whole = build_batch(records)
    cases = [damaged(whole[HEADER_SIZE : HEADER_SIZE + cut], 50) for cut in (400, 1999, 2500)]
    cases.append((BatchHeader.parse(whole), whole))
    gc.collect()  # what other tests have left
    kinds = [sys.getrefcount(kind) for kind in (Record, ConsumerRecord)]

    def use() -> None:
        for header, batch in cases:
            with contextlib.suppress(CorruptRecordError):
                first_slice(ConsumerRecord, header, batch, 0, ("t", 1), (0,))
        build_batch(records)

    use()
    gc.collect()
    tracemalloc.start()
    try:
        use()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            use()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
    left = [sys.getrefcount(kind) for kind in (Record, ConsumerRecord)]
    assert all(now <= then for now, then in zip(left, kinds, strict=True)), (left, kinds)


def test_headers_are_encoded_once_for_all_callers() -> None:
    assert encode_headers([("h", b"c"), ("n", None)]) == b"\x04\x02h\x02c\x02n\x01"


@pytest.mark.parametrize(
    ("package", "state"),
    [
        (None, "not installed"),
        (
            SimpleNamespace(API_VERSION=accel.API_VERSION, VERSION="1", enabled=False),
            "switched off by HEADRACE_ACCEL=0",
        ),
        (
            SimpleNamespace(API_VERSION=accel.API_VERSION + 1, VERSION="9", enabled=True),
            "headrace-accel 9 does not fit this version of Headrace; install the one that came with it",
        ),
        (
            SimpleNamespace(
                API_VERSION=accel.API_VERSION, VERSION="1", enabled=True, kernels="those"
            ),
            "headrace-accel 1",
        ),
    ],
)
def test_the_accelerator_is_used_only_if_its_version_fits(
    package: SimpleNamespace | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "headrace_accel", package)  # None: no such module
    kernels, found = accel._find()
    assert found == state
    assert kernels == (
        package.kernels if package is not None and state == "headrace-accel 1" else None
    )


def test_a_batch_cannot_grow_while_its_bytes_are_in_use() -> None:
    writer = built_kernels().RecordWriter(1 << 20, encode_headers)
    assert bytes(writer.join()) == b""
    assert writer.append(b"k", b"v" * 2000)
    with memoryview(writer.join()) as view:
        assert view.readonly
        with pytest.raises(BufferError, match="not added while others are looked at"):
            writer.append(b"k", b"w" * 2000)
        assert bytes(view).endswith(b"v\x00")
    assert writer.append(b"k", b"w" * 2000)
    assert writer.count == 2
    joined = writer.join()
    del writer
    assert bytes(joined).endswith(b"w\x00"), "what is looked at is there as long"
