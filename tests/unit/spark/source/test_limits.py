"""Limits of batches are shared by all partitions, none of which starves, and exceeded by less than one offset each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.source.limits import limit_bytes, limit_total
from headrace.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
partitions = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "x_y-z"]), st.integers(0, 12))
logs = st.dictionaries(
    partitions, st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=8
)


@given(logs, st.integers(1, 2000))
def test_an_offset_limit_is_kept_and_shared_by_all_partitions(sizes: dict, limit: int) -> None:
    start = {each: first for each, (first, _) in sizes.items()}
    end = {each: first + size for each, (first, size) in sizes.items()}
    waiting = sum(size for _, size in sizes.values())

    limited = limit_total(start, end, limit)

    assert limited.keys() == end.keys()
    taken = {each: limited[each] - start[each] for each in sizes}
    assert all(0 <= taken[each] <= size for each, (_, size) in sizes.items())
    assert all(taken[each] >= 1 for each, (_, size) in sizes.items() if size)
    assert sum(taken.values()) <= limit + len(sizes)
    if waiting <= limit:
        assert limited == end


def test_a_limit_is_shared_in_proportion() -> None:
    assert limit_total({A0: 0, A1: 10}, {A0: 900, A1: 110}, 100) == {A0: 90, A1: 20}


@given(logs, st.integers(1, 100_000), st.data())
def test_a_byte_limit_is_kept_and_shared_by_all_partitions(
    sizes: dict, limit: int, data: st.DataObject
) -> None:
    start = {each: first for each, (first, _) in sizes.items()}
    end = {each: first + size for each, (first, size) in sizes.items()}
    each_has = data.draw(st.fixed_dictionaries({each: st.floats(1, 5000) for each in sizes}))

    limited = limit_bytes(start, end, each_has, limit)

    taken = {each: limited[each] - start[each] for each in sizes}
    assert all(0 <= taken[each] <= size for each, (_, size) in sizes.items())
    assert all(taken[each] >= 1 for each, (_, size) in sizes.items() if size)
    beyond_one = sum((taken[each] - 1) * each_has[each] for each in sizes if taken[each])
    assert beyond_one <= limit * 1.000001
    if sum(size * each_has[each] for each, (_, size) in sizes.items()) <= limit:
        assert limited == end


def test_large_records_get_fewer_offsets() -> None:
    limited = limit_bytes({A0: 0, A1: 0}, {A0: 100, A1: 100}, {A0: 1000, A1: 10}, 50_500)

    assert limited == {A0: 50, A1: 50}, "each takes the same part of what waits"


def test_a_log_that_moved_back_is_left_where_it_is() -> None:
    assert limit_total({A0: 9, A1: 0}, {A0: 4, A1: 100}, 10) == {A0: 4, A1: 10}
