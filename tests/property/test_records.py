"""Random batches against kafka-python's reader and writer."""

from __future__ import annotations

import contextlib
import warnings

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptRecordError
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.reader import read_records
from tests.effort import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it loads its schemas in an old way
    from kafka.record import MemoryRecords, MemoryRecordsBuilder

FIELDS = st.tuples(
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4),
    st.integers(0, 2**45),
)

BOUNDARIES = [0, 1, 62, 63, 64, 2030, 2040, 2047, 2048, 8170, 8191, 8192, 20_000]
"""Lengths at which a varint gets longer, or at which the table of varints ends."""


@given(st.lists(FIELDS, min_size=1, max_size=40), st.sampled_from(Compression))
@settings(deadline=None)
def test_kafka_python_reads_our_batches(records: list, compression: Compression) -> None:
    batch = build_batch(records, compression=compression)
    theirs = MemoryRecords(batch).next_batch()
    assert theirs.validate_crc()
    assert [(r.key, r.value, [tuple(h) for h in r.headers], r.timestamp) for r in theirs] == records


@given(st.lists(FIELDS, min_size=1, max_size=40), st.sampled_from(Compression))
@settings(deadline=None)
def test_our_reader_reads_batches_of_kafka_python(records: list, compression: Compression) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(compression), batch_size=1 << 24)
    for key, value, headers, timestamp in records:
        assert builder.append(timestamp, key, value, headers) is not None
    builder.close()
    found = [(r.key, r.value, list(r.headers), r.timestamp) for r in read_records(builder.buffer())]
    assert found == records


@given(
    st.sampled_from(BOUNDARIES),
    st.sampled_from(BOUNDARIES),
    st.sampled_from([0, 1, 63, 64, 2047, 2048, 2**40]),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(80))
def test_lengths_and_numbers_of_every_size_are_coded_alike(
    key_size: int,
    value_size: int,
    later_ms: int,
    headers: bool,  # noqa: FBT001 - drawn, never passed by hand
) -> None:
    named = [("name", b"x" * key_size)] if headers else []
    records = [(b"k" * key_size, b"v" * value_size, named, 1000), (None, b"", [], 1000 + later_ms)]
    batch = build_batch(records)
    theirs = list(MemoryRecords(batch).next_batch())
    ours = list(read_records(batch))
    for found in (theirs, ours):
        assert [
            (r.key, r.value, [tuple(h) for h in r.headers], r.timestamp) for r in found
        ] == records


def test_offsets_of_every_size_are_coded_alike() -> None:
    batch = build_batch([(None, b"x", [], 1000)] * 9000)
    assert [record.offset for record in MemoryRecords(batch).next_batch()] == list(range(9000))
    assert [record.offset for record in read_records(batch)] == list(range(9000))


@given(
    st.lists(FIELDS, min_size=1, max_size=5),
    st.sampled_from(Compression),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(300))
def test_damage_raises_only_corrupt_record_errors(
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
