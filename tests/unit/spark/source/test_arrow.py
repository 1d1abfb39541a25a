"""The decoder of record batches to Arrow equals reading records one by one, in batches of bounded size."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.log.cleaning.batch_compaction import Rules, compact_batch
from headrace.errors import CorruptRecordError
from headrace.records.accel import Kernels
from headrace.records.batch import HEADER_SIZE, LOG_APPEND_TIME_FLAG, BatchHeader
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.compression import Compression
from headrace.records.reader import read_records
from headrace.spark.source.arrow import RangeDecoder
from headrace.spark.source.schema import topic_schema
from headrace.types import TopicPartition
from tests.fixtures.accelerator import built_kernels

PARTITION = TopicPartition("t", 3)
END = 1 << 40
SCHEMA = topic_schema(include_headers=True)

content = st.one_of(st.none(), st.binary(max_size=300))
record = st.tuples(
    content,
    content,
    st.lists(
        st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3
    ),
    st.integers(0, 4_000_000_000_000),
)


@pytest.fixture(scope="module", params=["Python", "C"])
def compiled(request: pytest.FixtureRequest) -> Kernels | None:
    return built_kernels() if request.param == "C" else None


def batch_at(base_offset: int, records: list, **options: Any) -> bytes:
    return build_batch(records, base_offset=base_offset, **options)


def simple(base_offset: int, count: int, **options: Any) -> bytes:
    records = [(b"k%d" % n, b"v%d" % n, (), n) for n in range(base_offset, base_offset + count)]
    return batch_at(base_offset, records, **options)


def decode(decoder: RangeDecoder, *payloads: bytes, aborted=()) -> list[pa.RecordBatch]:
    batches = [batch for payload in payloads for batch in decoder.feed(payload, aborted)]
    return [*batches, *decoder.finish()]


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@given(
    st.lists(st.lists(record, min_size=1, max_size=8), min_size=1, max_size=4),
    st.sampled_from(Compression),
)
def test_the_decoder_equals_reading_records_one_by_one(
    compiled: Kernels | None, batches: list, codec: Compression
) -> None:
    payload, base = b"", 0
    for records in batches:
        payload += batch_at(base, records, compression=codec)
        base += len(records)

    decoded = decode(
        RangeDecoder(PARTITION, 0, base, SCHEMA, max_rows=5, compiled=compiled), payload
    )

    rows = pa.Table.from_batches(decoded, SCHEMA).to_pylist()
    expected = list(read_records(payload))
    assert len(rows) == len(expected)
    assert all(batch.num_rows <= 5 for batch in decoded)
    for row, each in zip(rows, expected, strict=True):
        assert (row["offset"], row["key"], row["value"]) == (each.offset, each.key, each.value)
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(each.timestamp, abs=0.01)
        assert [(h["key"], h["value"]) for h in row["headers"]] == list(each.headers)
        assert (row["topic"], row["partition"], row["timestampType"]) == ("t", 3, 0)


@given(start=st.integers(0, 30), size=st.integers(1, 30), rows=st.integers(1, 7))
def test_the_decoder_returns_only_records_of_its_range(
    compiled: Kernels | None, start: int, size: int, rows: int
) -> None:
    payload = simple(0, 13) + simple(13, 1) + simple(14, 20)
    end = min(start + size, 34)

    decoder = RangeDecoder(
        PARTITION, start, max(end, start), SCHEMA, max_rows=rows, compiled=compiled
    )
    decoded = decode(decoder, payload)

    assert offsets(decoded) == list(range(start, end))
    assert decoder.position == max(end, start)


def test_headers_stay_with_their_records_when_a_batch_is_cut(compiled: Kernels | None) -> None:
    records = [(None, None, [(f"h{n}", b"%d" % k) for k in range(n)], 0) for n in range(6)]

    (decoded,) = decode(
        RangeDecoder(PARTITION, 2, 5, SCHEMA, compiled=compiled), batch_at(0, records)
    )

    names = [[each["key"] for each in row] for row in decoded.column("headers").to_pylist()]
    assert names == [["h2"] * 2, ["h3"] * 3, ["h4"] * 4]


def test_records_without_headers_have_an_empty_list_never_null(compiled: Kernels | None) -> None:
    (decoded,) = decode(RangeDecoder(PARTITION, 0, 4, SCHEMA, compiled=compiled), simple(0, 4))

    assert decoded.column("headers").null_count == 0
    assert decoded.schema.equals(SCHEMA)


def test_gaps_of_compaction_are_skipped(compiled: Kernels | None) -> None:
    decoder = RangeDecoder(PARTITION, 0, 100, SCHEMA, compiled=compiled)

    decoded = decode(decoder, simple(5, 2) + simple(40, 3))

    assert offsets(decoded) == [5, 6, 40, 41, 42]
    assert decoder.position == 43


def test_small_batches_share_an_arrow_batch_and_large_ones_are_split_by_bytes(
    compiled: Kernels | None,
) -> None:
    decoder = RangeDecoder(PARTITION, 0, END, SCHEMA, max_bytes=1000, compiled=compiled)
    wide = [(None, b"x" * 400, (), 0)] * 10

    decoded = decode(decoder, simple(0, 3), simple(3, 3), batch_at(6, wide))

    assert offsets(decoded) == list(range(16))
    assert len(decoded) > 3
    assert all(batch.nbytes < 2500 for batch in decoded)


def test_an_incomplete_batch_at_the_end_waits_for_the_next_fetch(compiled: Kernels | None) -> None:
    decoder = RangeDecoder(PARTITION, 0, END, SCHEMA, compiled=compiled)
    second = simple(4, 4)

    batches = list(decoder.feed(simple(0, 4) + second[:-3]))
    assert decoder.position == 4
    batches += list(decoder.feed(second))

    assert offsets([*batches, *decoder.finish()]) == list(range(8))


def test_log_append_time_counts_for_all_records_of_a_batch(compiled: Kernels | None) -> None:
    batch = bytearray(simple(0, 3))
    batch[22] |= LOG_APPEND_TIME_FLAG
    batch[35:43] = (1_700_000_000_000).to_bytes(8, "big")
    with_crc(batch)

    (decoded,) = decode(RangeDecoder(PARTITION, 0, 3, SCHEMA, compiled=compiled), bytes(batch))

    assert decoded.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_000_000] * 3
    assert decoded.column("timestampType").to_pylist() == [1, 1, 1]


def with_crc(batch: bytearray) -> None:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")


def control(base_offset: int, producer_id: int, *, commit: bool) -> bytes:
    builder = BatchBuilder(transactional=True, control=True)
    builder.append(b"\0\0\0" + bytes([commit]), b"\0\0\0\0\0\0")
    return builder.build(producer_id, 0, base_offset=base_offset)


def transactional(base_offset: int, producer_id: int) -> bytes:
    builder = BatchBuilder(transactional=True)
    builder.append(None, b"x")
    builder.append(None, b"y")
    return builder.build(producer_id, 0, 0, base_offset=base_offset)


def test_aborted_transactions_are_left_out_and_markers_never_shown(
    compiled: Kernels | None,
) -> None:
    payload = (
        transactional(0, 7)
        + transactional(2, 8)
        + control(4, 7, commit=False)
        + transactional(5, 7)
        + control(7, 8, commit=True)
        + control(8, 7, commit=True)
    )
    decoder = RangeDecoder(PARTITION, 0, 9, SCHEMA, compiled=compiled)

    assert offsets(decode(decoder, payload, aborted=[(7, 0)])) == [2, 3, 5, 6]
    assert decoder.position == 9

    everything = decode(RangeDecoder(PARTITION, 0, 9, SCHEMA, compiled=compiled), payload)
    assert offsets(everything) == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize("cut", [0, 1, 5, 20])
def test_a_damaged_batch_is_an_error_and_never_wrong_rows(
    compiled: Kernels | None, cut: int
) -> None:
    batch = bytearray(simple(0, 5))
    batch[HEADER_SIZE + cut] ^= 0x55

    with pytest.raises(CorruptRecordError):
        decode(RangeDecoder(PARTITION, 0, 5, SCHEMA, compiled=compiled), bytes(batch))


@given(st.binary(min_size=1, max_size=80), st.integers(0, 90), st.integers(1, 2000))
def test_any_bytes_with_a_right_crc_end_in_rows_or_an_error(
    compiled: Kernels | None, noise: bytes, place: int, count: int
) -> None:
    batch = bytearray(simple(0, 6))
    place = min(place, len(batch) - HEADER_SIZE)
    batch[HEADER_SIZE + place : HEADER_SIZE + place + len(noise)] = noise
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    with_crc(batch)

    try:
        decoded = decode(RangeDecoder(PARTITION, 0, END, SCHEMA, compiled=compiled), bytes(batch))
    except (CorruptRecordError, pa.ArrowInvalid):
        return
    assert sum(each.num_rows for each in decoded) <= count


def test_timestamps_of_a_batch_with_a_delete_horizon_are_those_of_its_records(
    compiled: Kernels | None,
) -> None:
    """Compaction sets the base timestamp to the horizon, so the deltas are negative (KIP-534)."""
    batch = build_batch([(b"a", b"1", (), 5_000), (b"a", None, (), 6_000), (b"b", b"2", (), 7_000)])
    rules = Rules({b"a": 1, b"b": 2}, 3, now_ms=10**12, delete_retention_ms=10**9)
    compacted = compact_batch(BatchHeader.parse(batch), batch, rules, keep_empty=False)
    assert compacted is not None
    assert BatchHeader.parse(compacted).base_timestamp == 10**12 + 10**9
    decoder = RangeDecoder(TopicPartition("t", 0), 0, 3, SCHEMA, compiled=compiled)
    tables = [*decoder.feed(bytes(compacted)), *decoder.finish()]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (1, b"a", None),
        (2, b"b", b"2"),
    ]
    assert [row["timestamp"].timestamp() for row in rows] == [6, 7]
