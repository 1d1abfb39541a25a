"""Batches of any shape against kafka-python's reader and writer."""

from __future__ import annotations

import contextlib
import warnings

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptRecordError
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.reader import read_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it loads its schemas in an old way
    from kafka.record import MemoryRecords, MemoryRecordsBuilder

FIELDS = st.tuples(
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4),
    st.integers(0, 2**45),
)


@given(st.lists(FIELDS, min_size=1, max_size=40), st.sampled_from(Compression))
@settings(deadline=None)
def test_kafka_python_reads_what_we_write(records: list, compression: Compression) -> None:
    batch = build_batch(records, compression=compression)
    theirs = MemoryRecords(batch).next_batch()
    assert theirs.validate_crc()
    assert [(r.key, r.value, [tuple(h) for h in r.headers], r.timestamp) for r in theirs] == records


@given(st.lists(FIELDS, min_size=1, max_size=40), st.sampled_from(Compression))
@settings(deadline=None)
def test_we_read_what_kafka_python_writes(records: list, compression: Compression) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(compression), batch_size=1 << 24)
    for key, value, headers, timestamp in records:
        assert builder.append(timestamp, key, value, headers) is not None
    builder.close()
    found = [(r.key, r.value, list(r.headers), r.timestamp) for r in read_records(builder.buffer())]
    assert found == records


@given(
    st.lists(FIELDS, min_size=1, max_size=5),
    st.sampled_from(Compression),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_damage_is_an_error_and_nothing_else(
    records: list,
    compression: Compression,
    damage: list[tuple[int, int]],
    cut: bool,  # noqa: FBT001 - drawn, never passed by hand
) -> None:
    batch = bytearray(build_batch(records, compression=compression))
    for position, byte in damage:
        batch[position % len(batch)] = byte
    if cut:
        del batch[damage[0][0] % len(batch) :]
    with contextlib.suppress(CorruptRecordError):
        list(read_records(batch, tolerate_truncated=cut))
