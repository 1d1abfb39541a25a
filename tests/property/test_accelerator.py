"""The accelerator and the functions in Python have equal results: for whole batches, damaged batches, and any calls."""

from __future__ import annotations

import contextlib
import struct
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clients.consumer.records import CREATE_TIME, ConsumerRecord
from headrace.clients.partitioners import murmur2
from headrace.clients.producer.many import ColumnRows, Rows
from headrace.errors import CorruptRecordError
from headrace.records.accel import Kernels
from headrace.records.batch import HEADER_SIZE, MIN_RECORD_SIZE, BatchHeader
from headrace.records.builder import RecordWriter, build_batch, encode_headers
from headrace.records.decoding import _decode_records
from headrace.records.reader import Record
from headrace.records.varint import wrap
from tests.effort import examples
from tests.fixtures.accelerator import built_kernels
from tests.fuzz.mutation import mutated

INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, 2**63 - 1, -(2**63)])
CONTENT = st.none() | st.binary(max_size=200) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 9000])
NAME = st.text(st.characters(codec=None), max_size=8).filter(
    lambda name: all(ord(char) not in range(0xD800, 0xE000) for char in name)
) | st.just("\udcff")
FIELDS = st.tuples(
    CONTENT,
    CONTENT,
    st.lists(st.tuples(NAME, st.none() | st.binary(max_size=70)), max_size=4),
    st.integers(0, 2**45),
)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return built_kernels()


def in_python(
    data: bytes, header: BatchHeader, place: int = 0, most_bytes: int = 2**40
) -> tuple[list[Record], int] | None:
    """Return the records that the loop in Python reads, and the byte after them; None for damaged bytes."""
    new = partial(tuple.__new__, Record)
    if not 0 <= header.records_count * MIN_RECORD_SIZE <= len(data):
        return None
    with contextlib.suppress(CorruptRecordError, IndexError):
        count = header.records_count
        return _decode_records(data, place, count, place + most_bytes, header, new)
    return None


def in_c(
    kernels: Kernels, data: bytes, header: BatchHeader, place: int = 0, most_bytes: int = 2**40
) -> tuple[list[Any], int] | None:
    fixed = header.max_timestamp if header.timestamp_type else None
    count, base_offset, base_timestamp = (
        header.records_count,
        header.base_offset,
        header.base_timestamp,
    )
    return kernels.decode_records(
        data, place, count, most_bytes, base_offset, base_timestamp, fixed, Record, (), ()
    )


def wraps(header: BatchHeader, record: Record) -> bool:
    """Return whether the sum of the base timestamp and the record's delta has more than 64 bits."""
    delta = wrap(record[1] - header.base_timestamp)
    return not -(2**63) <= header.base_timestamp + delta < 2**63


def assert_equal(kernels: Kernels, data: bytes, header: BatchHeader) -> None:
    expected, found = in_python(data, header), in_c(kernels, data, header)
    if expected is not None and any(
        not -(2**63) <= number < 2**63 for record in expected[0] for number in record[:2]
    ):
        return  # such a number does not fit into its field, and only Python handles it
    if expected is not None and found is None:
        # Sums of timestamps with more than 64 bits are left to Python, which wraps them.
        assert header.timestamp_type or any(map(partial(wraps, header), expected[0]))
        return
    assert found == expected
    assert found is None or all(type(record) is Record for record in found[0])


@given(
    st.lists(FIELDS, min_size=1, max_size=30),
    st.integers(0, 2**32),
    st.tuples(INT64, INT64, st.integers(-1, 40), st.sampled_from([0, 8])),
)
@settings(deadline=None, max_examples=examples(80))
def test_the_accelerator_and_python_agree_on_damaged_records(
    kernels: Kernels,
    records: list,
    seed: int,
    numbers: tuple[int, int, int, int],
) -> None:
    batch = build_batch(records)
    base_offset, base_timestamp, claimed, attributes = numbers
    header = BatchHeader.parse(batch)._replace(
        base_offset=base_offset, base_timestamp=base_timestamp, attributes=attributes
    )
    whole = batch[HEADER_SIZE:]
    assert_equal(kernels, whole, header)
    chance = Random(seed)
    assert_equal(kernels, whole, header._replace(records_count=claimed))
    for _ in range(20):
        assert_equal(kernels, mutated(whole, chance, whole, most=2), header)
        assert_equal(kernels, whole[: chance.randrange(len(whole) + 1)], header)


@given(st.binary(max_size=60), st.integers(-5, 9))
@settings(deadline=None, max_examples=examples(200))
def test_the_accelerator_and_python_agree_on_any_bytes(
    kernels: Kernels, data: bytes, count: int
) -> None:
    header = BatchHeader.parse(bytes(HEADER_SIZE))._replace(records_count=count)
    assert_equal(kernels, data, header)


@given(st.lists(FIELDS, min_size=1, max_size=30), st.integers(0, 2**40))
@settings(deadline=None)
def test_records_with_offset_and_partition_equal_those_without(
    kernels: Kernels, records: list, base_offset: int
) -> None:
    batch = build_batch(records)
    header = BatchHeader.parse(batch)
    place: tuple[Any, ...] = ("topic", 3)
    found = kernels.decode_records(
        memoryview(batch)[HEADER_SIZE:],
        0,
        header.records_count,
        2**40,
        base_offset,
        header.base_timestamp,
        None,
        ConsumerRecord,
        place,
        (9, CREATE_TIME, -1),
    )
    assert found is not None
    assert found[1] == len(batch) - HEADER_SIZE
    assert found[0] == [
        ConsumerRecord("topic", 3, base_offset + index, stamp, key, value, tuple(headers), 9)
        for index, (key, value, headers, stamp) in enumerate(records)
    ]


@given(st.lists(FIELDS, min_size=1, max_size=30), st.integers(0, 60), st.integers(0, 2000))
@settings(deadline=None)
def test_slices_end_at_the_same_records(
    kernels: Kernels, records: list, count: int, most_bytes: int
) -> None:
    batch = build_batch(records)
    header, data = BatchHeader.parse(batch), batch[HEADER_SIZE:]
    place, left, found = 0, len(records), []
    while left:
        part = header._replace(records_count=min(count or 1, left))
        expected = in_python(data, part, place, most_bytes)
        assert expected == in_c(kernels, data, part, place, most_bytes)
        assert expected is not None
        found += expected[0]
        assert all(not each.headers for each in expected[0][:-1]) or most_bytes
        place, left = expected[1], left - len(expected[0])
    assert found == in_python(data, header)[0]  # type: ignore[index]  # it is whole
    assert place == len(data)


@given(
    st.lists(st.tuples(CONTENT, CONTENT, FIELDS.map(lambda each: each[2]), INT64), max_size=40),
    st.integers(0, 3000),
    st.lists(st.none() | st.binary(max_size=90), max_size=20),
)
@settings(deadline=None, max_examples=examples(80))
def test_the_accelerator_and_python_fill_a_batch_with_the_same_bytes(
    kernels: Kernels, records: list, most: int, more: list
) -> None:
    ours, theirs = RecordWriter(most), kernels.RecordWriter(most, encode_headers)
    for record in records:
        outcomes: list[object] = []
        for writer in (ours, theirs):
            try:
                outcomes.append(writer.append(*record))
            except ValueError as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]
    with contextlib.suppress(ValueError):
        assert ours.extend(more, 1, 5) == theirs.extend(more, 1, 5)
        for name in ("size", "count", "base_timestamp", "max_timestamp"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.join() == theirs.join()


@given(st.binary(max_size=100))
@settings(deadline=None)
def test_keys_are_hashed_alike(kernels: Kernels, key: bytes) -> None:
    assert kernels.murmur2(key) == murmur2(key)


ROW = st.tuples(
    st.none() | st.binary(max_size=12),
    st.none() | st.binary(max_size=90),
    st.none() | st.integers(-(2**50), 2**50),
    st.sampled_from([None, None, 0, 1, 4]),
)
PARTITIONS = 5


def filled(rows: Rows, new_writer: Any, hashed: int) -> dict[int, list[tuple[Any, ...]]]:
    """Return the batches of rows. Each partition has one open batch, which is created when it is needed."""
    queues: dict[int, Any] = {}
    batches: dict[int, list[Any]] = {}
    sticky = -1
    while (row := rows.fill(queues, PARTITIONS, hashed, sticky)) is not None:
        key, value, headers, timestamp_ms, place = row
        assert headers == ()
        if place is None:
            place = sticky = 2
        open_batch = getattr(queues.get(place), "open", None)
        if open_batch is None or not open_batch.append(key, value, (), timestamp_ms):
            writer = new_writer()
            assert writer.append(key, value, (), timestamp_ms)
            queues[place] = SimpleNamespace(open=SimpleNamespace(append=writer.append))
            batches.setdefault(place, []).append(writer)
    return {
        place: [(each.count, each.base_timestamp, each.max_timestamp, each.join()) for each in made]
        for place, made in batches.items()
    }


@given(
    st.lists(ROW, max_size=60),
    st.sampled_from([0, PARTITIONS]),
    st.integers(0, 3),
    st.integers(80, 400),
)
def test_columns_fill_the_batches_that_their_rows_do(
    kernels: Kernels, rows: list[tuple[Any, ...]], hashed: int, skipped: int, max_bytes: int
) -> None:
    kinds = (pa.binary(), pa.binary(), pa.int64(), pa.int32())
    arrays = [pa.array([row[at] for row in rows], kind)[skipped:] for at, kind in enumerate(kinds)]
    columns = [
        (array.offset, *array.buffers())
        if at < 2
        else (array.offset, array.buffers()[0], None, array.buffers()[1])
        for at, array in enumerate(arrays)
    ]
    in_c = ColumnRows("t", kernels.RowColumns(len(arrays[0]), 77, *columns))
    in_python = Rows(
        "t",
        [
            (key, value, (), 77 if at is None else at // 1000, place)
            for key, value, at, place in rows[skipped:]
        ],
    )
    assert filled(in_c, lambda: kernels.RecordWriter(max_bytes, encode_headers), hashed) == filled(
        in_python, lambda: RecordWriter(max_bytes), hashed
    )


def test_columns_that_are_not_whole_are_refused(kernels: Kernels) -> None:
    ends = struct.pack("<3i", 0, 2, 9)
    columns: list[Any] = [
        (0, None, None, b"ab"),
        (0, None, ends[:8], b"ab"),
        (1, None, ends, b"ab"),
        (0, b"", ends, b"ab"),
        (-1, None, ends, b"ab"),
        (2**62, None, ends, b"ab"),
        (0, None, ends),
        b"ab",
    ]
    for column in columns:
        with pytest.raises((ValueError, TypeError)):
            kernels.RowColumns(2, 0, None, column, None, None)
    for number in ((0, None, None, b"1234567"), (1, None, None, b"12345678")):
        with pytest.raises(ValueError, match="shorter than its rows"):
            kernels.RowColumns(1, 0, None, None, number, None)
    rows = kernels.RowColumns(2, 7, None, (0, None, ends, b"ab"), None, None)
    assert rows.fill({}, 1, 0, -1) == (None, b"ab", (), 7, None)
    with pytest.raises(ValueError, match="content is shorter"):
        rows.fill({}, 1, 0, -1)
    with pytest.raises(ValueError, match="a partition at least"):
        rows.fill({}, 0, 0, -1)
    batch = SimpleNamespace(append=RecordWriter(100).append)
    with pytest.raises(TypeError, match="the accelerator's RecordWriter"):
        kernels.RowColumns(1, 0, None, None, None, None).fill(
            {0: SimpleNamespace(open=batch)}, 1, 0, 0
        )
