"""Ranges are divided into tasks: split as by Spark's connector, small ranges together, each offset once."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.source.division import LEAST_TASK_OFFSETS, TASK_OFFSETS, TaskDivision
from headrace.spark.source.offsets import OffsetRange
from headrace.spark.source.tasks import split, tasks
from headrace.types import TopicPartition


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("a", n), 7, 7 + size) for n, size in enumerate(sizes)]


def spans(found: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(each.topic_partition.partition, each.start - 7, each.end - 7) for each in found]


divisions = st.builds(
    TaskDivision,
    cores=st.integers(1, 9),
    max_tasks=st.one_of(st.none(), st.integers(1, 9)),
    min_partitions=st.one_of(st.none(), st.integers(1, 40)),
    max_records=st.one_of(st.none(), st.integers(1, 400)),
    least=st.sampled_from([1, LEAST_TASK_OFFSETS]),
)


@pytest.mark.slow
@given(st.lists(st.integers(0, 3000), max_size=12), divisions)
def test_tasks_cover_each_offset_once_and_keep_the_limits(
    sizes: list, division: TaskDivision
) -> None:
    wanted = ranges(*sizes)

    found = tasks(wanted, division)

    pieces = sorted(
        (piece for task in found for piece in task.ranges),
        key=lambda each: (each.topic_partition, each.start),
    )
    for whole in wanted:
        place = whole.start
        for piece in pieces:
            if piece.topic_partition == whole.topic_partition:
                assert (piece.start, piece.size > 0) == (place, True)
                place = piece.end
        assert place == whole.end
    assert all(task.ranges for task in found)
    for task in found:
        order = [(each.topic_partition, each.start) for each in task.ranges]
        assert order == sorted(order)
        if division.max_records is not None:
            assert sum(each.size for each in task.ranges) <= division.max_records
    total = sum(sizes)
    most = max(division.cores, division.min_partitions or 1, math.ceil(total / TASK_OFFSETS))
    if division.max_records is None:
        assert len(found) <= most
        if division.min_partitions is not None and total:
            nonempty = sum(1 for size in sizes if size)
            assert len(found) >= min(division.min_partitions, nonempty)


@given(divisions)
def test_a_task_division_survives_a_checkpoint(division: TaskDivision) -> None:
    assert TaskDivision.from_json(json.loads(json.dumps(division.to_json()))) == division


# Calculated with the formulas of Spark's Kafka connector; test_option_parity.py compares with the real one.
@pytest.mark.parametrize(
    ("sizes", "min_partitions", "max_records", "expected"),
    [
        ((100,), 3, None, [(0, 0, 33), (0, 33, 66), (0, 66, 100)]),
        ((100, 1), 3, None, [(0, 0, 50), (0, 50, 100), (1, 0, 1)]),
        ((10, 10), 2, None, [(0, 0, 10), (1, 0, 10)]),
        ((25,), None, 10, [(0, 0, 8), (0, 8, 16), (0, 16, 25)]),
        ((25, 10), 4, 10, [(0, 0, 8), (0, 8, 16), (0, 16, 25), (1, 0, 10)]),
        ((3,), 9, None, [(0, 0, 1), (0, 1, 2), (0, 2, 3)]),
        ((0, 5), None, None, [(1, 0, 5)]),
    ],
)
def test_ranges_are_split_as_sparks_connector_splits_them(
    sizes: tuple, min_partitions: int | None, max_records: int | None, expected: list
) -> None:
    division = TaskDivision(1, None, min_partitions, max_records)

    assert spans(split(ranges(*sizes), division)) == expected


def test_many_small_ranges_share_a_task_for_each_core() -> None:
    found = tasks(ranges(*range(1, 101)), TaskDivision(4))

    assert len(found) == 4
    sizes = [sum(each.size for each in task.ranges) for task in found]
    assert max(sizes) - min(sizes) <= 100


@pytest.mark.parametrize(
    ("size", "division", "expected"),
    [
        (50, TaskDivision(4, least=LEAST_TASK_OFFSETS), 1),
        (LEAST_TASK_OFFSETS // 4, TaskDivision(4, least=LEAST_TASK_OFFSETS), 2),
        (LEAST_TASK_OFFSETS, TaskDivision(4, least=LEAST_TASK_OFFSETS), 4),
        (50, TaskDivision(4, None, 3, least=LEAST_TASK_OFFSETS), 3),
        (50, TaskDivision.from_json({"cores": 4, "worth": 100_000}), 4),
    ],
)
def test_a_short_batch_is_one_task_unless_more_are_requested(
    size: int, division: TaskDivision, expected: int
) -> None:
    assert len(tasks(ranges(*[size] * 8), division)) == expected


def test_long_ranges_have_a_task_each_unless_that_is_forbidden() -> None:
    long = ranges(*[TASK_OFFSETS] * 10)

    assert len(tasks(long, TaskDivision(2))) == 10
    assert len(tasks(long, TaskDivision(2, max_tasks=2))) == 2
