"""The accelerator's columns: they refuse invalid arguments, keep no memory, and take a record whole or not at all."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from headrace.records.accel import ColumnWriter
from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.records.builder import build_batch
from tests.fixtures.accelerator import built_kernels

ALL = ("key", "value", "offset", "timestamp", "timestampType", "headers")
RECORDS = [
    (b"k%d" % n, None if n % 3 else b"v" * n, [("h", b"c"), ("\udcff", None)], n) for n in range(50)
]
BATCH = build_batch(RECORDS)
SECTION = BATCH[HEADER_SIZE:]
BASE_TIMESTAMP = BatchHeader.parse(BATCH).base_timestamp


def writer(
    columns: tuple[str, ...] = ALL, max_rows: int = 100, max_bytes: int = 1 << 20
) -> ColumnWriter:
    return built_kernels().ColumnWriter(columns, max_rows, max_bytes)


def walk(
    into: ColumnWriter, section: bytes, place: int = 0, count: int = 50
) -> tuple[int, int, int]:
    return into.walk(section, place, count, 0, BASE_TIMESTAMP, None, 0, 0, 1 << 40)


@pytest.mark.parametrize(
    ("columns", "bounds", "error"),
    [
        (("key", 1), (1, 1), TypeError),
        (["key"], (1, 1), TypeError),
        (ALL, (0, 1), ValueError),
        (ALL, (1, 0), ValueError),
        (ALL, (1 << 31, 1), ValueError),
        (ALL, (1, 1 << 31), ValueError),
    ],
)
def test_columns_and_bounds_that_arrow_cannot_hold_are_refused(
    columns: Any, bounds: tuple[int, int], error: type[Exception]
) -> None:
    with pytest.raises(error):
        writer(columns, *bounds)


@pytest.mark.parametrize(("place", "count"), [(-1, 1), (len(SECTION) + 1, 1), (0, -1)])
def test_a_byte_position_outside_of_the_section_is_refused(place: int, count: int) -> None:
    with pytest.raises(ValueError, match="outside of the section"):
        walk(writer(), SECTION, place, count)


def test_an_uninitialized_column_writer_refuses_records() -> None:
    kind: Any = built_kernels().ColumnWriter
    with pytest.raises(ValueError, match="outside of the section"):
        walk(kind.__new__(kind), SECTION)


def test_a_record_is_taken_whole_or_not_at_all() -> None:
    for cut in range(len(SECTION)):
        into = writer()
        place, left, why = walk(into, SECTION[:cut])
        assert (why, left + len(into)) == (2, 50)
        again = writer()
        assert walk(again, SECTION[:place], 0, len(into))[1:] == (0, 0)
        assert again.take() == into.take()


def test_a_full_column_writer_continues_at_the_record_where_it_stopped() -> None:
    into, offsets = writer(max_rows=7), b""
    place, left, why = 0, 50, 1
    while why:
        place, left, why = walk(into, SECTION, place, left)
        assert len(into) == (7 if why else 1)
        offsets += into.take()["offset"]
    assert (place, left) == (len(SECTION), 0)
    assert memoryview(offsets).cast("q").tolist() == list(range(50))
    assert len(into) == 0


def test_columns_keep_no_memory() -> None:
    into = writer()

    def use() -> None:
        for cut in (100, 700, len(SECTION)):
            walk(into, SECTION[:cut])
            walk(into, SECTION[:cut])
            into.take()
        walk(writer(("value", "headers")), SECTION)  # and ends full

    use()
    tracemalloc.start()
    try:
        use()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            use()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 5_000
