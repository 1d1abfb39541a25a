"""How the ranges of a batch become tasks: large ones are split where that is asked for, small ones share a task.

A task costs Spark about a tenth of a second of CPU before it reads anything, so that a hundred small partitions are
read by a task for each core rather than by a hundred, and a hundred nearly empty ones by one task.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql.datasource import InputPartition

from headrace.spark.source.division import TaskDivision
from headrace.spark.source.offsets import OffsetRange
from headrace.types import TopicPartition


class ReadTask(InputPartition):
    """What one task reads, in this order. Ranges of a partition lie behind each other in it by offset."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def tasks(ranges: Iterable[OffsetRange], division: TaskDivision) -> list[ReadTask]:
    """Return the tasks that together read the ranges, each offset once; empty ranges have none."""
    return [ReadTask(each) for each in pack(split(ranges, division), division)]


def split(ranges: Iterable[OffsetRange], division: TaskDivision) -> list[OffsetRange]:
    """Cut ranges as Spark's Kafka connector does for `maxRecordsPerPartition` and then for `minPartitions`.

    The latter gives about as many pieces as asked for: a range gets as many as its part of all offsets, and ranges that
    are too small to be cut are set aside before.
    """
    found = [each for each in ranges if each.size > 0]
    if division.max_records is not None:
        limit = division.max_records
        found = [piece for each in found for piece in _cut(each, math.ceil(each.size / limit))]
    wanted = division.min_partitions
    if wanted is None or len(found) >= wanted:
        return found
    total = sum(each.size for each in found)
    whole = [each for each in found if _pieces(each.size, total, wanted) == 1]
    whole_partitions = {each.topic_partition for each in whole}
    rest = total - sum(each.size for each in whole)
    wanted_of_rest = max(wanted - len(whole), 1)
    return [
        piece
        for each in found
        for piece in _cut(
            each,
            1
            if each.topic_partition in whole_partitions
            else _pieces(each.size, rest, wanted_of_rest),
        )
    ]


def _pieces(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    """Cut a range into pieces whose sizes differ by one at most."""
    cut: list[OffsetRange] = []
    start = whole.start
    for done in range(pieces):
        end = start + (whole.end - start) // (pieces - done)
        if end > start:
            cut.append(replace(whole, start=start, end=end))
        start = end
    return cut


def pack(ranges: Sequence[OffsetRange], division: TaskDivision) -> list[list[OffsetRange]]:
    """Put small ranges together, by size so that the tasks are about equally long.

    There are as many tasks as cores or, if they would be long then, more, or, if they would be over at once, fewer;
    never fewer than `minPartitions` asks for and never one with more offsets than `maxRecordsPerPartition`.
    """
    total = sum(each.size for each in ranges)
    count = min(division.cores, math.ceil(total / division.least))
    count = max(count, division.min_partitions or 1)
    if division.max_tasks is None:
        count = max(count, math.ceil(total / division.worth))
    while count < len(ranges):
        packed = _packed(ranges, count)
        largest = max(sum(each.size for each in task) for task in packed)
        if division.max_records is None or largest <= division.max_records:
            return packed
        count += max(1, count // 4)
    return [[each] for each in ranges]


def _packed(ranges: Sequence[OffsetRange], count: int) -> list[list[OffsetRange]]:
    """Give each range, the longest first, to the task that is the shortest so far."""
    bins: list[tuple[int, int, list[OffsetRange]]] = [(0, number, []) for number in range(count)]
    for each in sorted(ranges, key=lambda one: (-one.size, one.topic_partition, one.start)):
        size, number, task = heapq.heappop(bins)
        task.append(each)
        heapq.heappush(bins, (size + each.size, number, task))
    in_order = sorted(bins, key=lambda one: one[1])
    return [sorted(task, key=_place) for _, _, task in in_order]


def _place(wanted: OffsetRange) -> tuple[TopicPartition, int]:
    return wanted.topic_partition, wanted.start
