"""The conversion of records to Arrow columns has equal results with and without the accelerator, for any log."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.log.cleaning.batch_compaction import Rules, compact_batch
from headrace.records.accel import Kernels
from headrace.records.batch import HEADER_SIZE, LOG_APPEND_TIME_FLAG, BatchHeader
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.compression import Compression
from headrace.records.reader import read_records
from tests.fixtures.accelerator import built_kernels
from tests.fixtures.columns import ALL, assert_alike, decoded
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import with_crc

KEYS = st.none() | st.binary(max_size=3)
CONTENT = st.none() | st.binary(max_size=200) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 9000])
NAME = st.sampled_from(["", "h", "größe", "\udcff", "\udce4x"]) | st.text("aäß€", max_size=5)
RECORDS = st.lists(
    st.tuples(
        KEYS,
        CONTENT,
        st.lists(st.tuples(NAME, CONTENT), max_size=3),
        st.integers(-1, 2**45),
    ),
    min_size=1,
    max_size=12,
)
BATCH = st.tuples(
    RECORDS,
    st.sampled_from(Compression),
    st.sampled_from(
        ["plain", "plain", "compacted", "appended", "transactional", "commit", "abort"]
    ),
    st.integers(0, 3),  # offsets that are missing before it
    st.integers(5, 6),  # its producer
)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return built_kernels()


def encoded(base_offset: int, batch: tuple[Any, ...]) -> bytes:
    records, codec, kind, _, producer_id = batch
    if kind in {"commit", "abort"}:
        marker = BatchBuilder(transactional=True, control=True)
        marker.append(b"\0\0\0" + bytes([kind == "commit"]), bytes(6))
        return marker.build(producer_id, 0, base_offset=base_offset)
    if kind == "transactional":
        builder = BatchBuilder(transactional=True, compression=codec)
        for record in records:
            builder.append(*record)
        return builder.build(producer_id, 0, 0, base_offset=base_offset)
    data = build_batch(records, compression=codec, base_offset=base_offset)
    if kind == "appended":
        changed = bytearray(data)
        changed[22] |= LOG_APPEND_TIME_FLAG
        return with_crc(bytes(changed))
    if kind == "compacted":
        latest = {key: base_offset + n for n, (key, *_) in enumerate(records) if key is not None}
        rules = Rules(latest, base_offset + len(records), now_ms=10**12, delete_retention_ms=10**9)
        kept = compact_batch(BatchHeader.parse(data), data, rules, keep_empty=True)
        return bytes(kept or b"")
    return data


@given(
    st.lists(BATCH, max_size=5),
    st.tuples(st.integers(0, 30), st.integers(1, 60)),
    st.fixed_dictionaries(
        {
            "columns": st.lists(st.sampled_from(ALL.names), min_size=1, unique=True),
            "aborted": st.lists(st.tuples(st.integers(5, 6), st.integers(0, 40)), max_size=2),
            "max_rows": st.integers(1, 9),
            "max_bytes": st.integers(1, 2000),
        }
    ),
    st.integers(0, 2**32),
)
@settings(deadline=None)
def test_both_walks_make_the_same_columns(
    kernels: Kernels, log: list, span: tuple[int, int], more: dict, seed: int
) -> None:
    offset = 0
    pieces: list[bytes] = []
    for batch in log:
        offset += batch[3]
        pieces.append(encoded(offset, batch))
        offset += 1 if batch[2] in {"commit", "abort"} else len(batch[0])
    payload = b"".join(pieces)
    start, end = span[0], span[0] + span[1]

    expected = decoded(None, [payload], start, end, **more)
    found = decoded(kernels, [payload], start, end, **more)

    assert isinstance(found, list)
    assert isinstance(expected, list)
    assert len(found) == len(expected), "they end their Arrow batches alike"
    for ours, theirs in zip(expected, found, strict=True):
        assert theirs.equals(ours)
        assert theirs.schema.equals(ours.schema)
        assert 0 < ours.num_rows <= more["max_rows"]
    if not more["aborted"]:
        read = [each.offset for each in read_records(payload) if start <= each.offset < end]
        assert sum(batch.num_rows for batch in found) == len(read)

    place = next((n for n, piece in enumerate(pieces) if len(piece) > HEADER_SIZE), None)
    if place is not None:
        body, chance = pieces[place][HEADER_SIZE:], Random(seed)
        pieces[place] = with_crc(pieces[place][:HEADER_SIZE] + mutated(body, chance, body, most=2))
        assert_alike(kernels, [b"".join(pieces)], start, end, **more)


def test_a_large_record_is_the_only_one_in_its_arrow_batch(kernels: Kernels) -> None:
    sizes = [10, 5_000_000, 10, 10, 2_000_000, 3_000_000]
    payload = build_batch([(None, b"v" * size, (), 0) for size in sizes])
    for compiled in (None, kernels):
        batches = decoded(compiled, [payload], max_bytes=1_000_000)
        assert isinstance(batches, list)
        assert [batch.num_rows for batch in batches] == [1, 1, 2, 1, 1]


def test_a_time_out_of_range_for_spark_is_an_error_if_its_column_is_read(
    kernels: Kernels,
) -> None:
    payload = build_batch([(b"k", b"v", (), 5), (b"k", b"v", (), 2**62)])
    for compiled in (None, kernels):
        assert "too far from 1970" in str(decoded(compiled, [payload]))
        batches = decoded(compiled, [payload], columns=["value", "offset"])
        assert isinstance(batches, list)
        assert len(batches) == 1
        assert batches[0].to_pydict() == {"value": [b"v", b"v"], "offset": [0, 1]}
