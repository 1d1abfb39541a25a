"""Divide the ranges of a batch into tasks: options may split large ranges, and small ranges share a task.

A task costs Spark about a tenth of a second of CPU before it reads anything. So a hundred small partitions are read by
one task for each core, and a hundred nearly empty partitions by one task.
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
    """The ranges that one task reads, in this order. Ranges of one partition are in the order of offsets."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def tasks(ranges: Iterable[OffsetRange], division: TaskDivision) -> list[ReadTask]:
    """Return tasks that together read each offset of the ranges exactly once. Empty ranges are left out."""
    return [ReadTask(each) for each in pack(split(ranges, division), division)]


def split(ranges: Iterable[OffsetRange], division: TaskDivision) -> list[OffsetRange]:
    """Split ranges as Spark's Kafka connector does, for `maxRecordsPerPartition` and then for `minPartitions`.

    `minPartitions` results in about that many pieces: a range has a number of pieces in proportion to its offsets.
    Ranges that are too small to be split are set aside first.
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
    """Split a range into pieces whose sizes differ by at most one offset."""
    cut: list[OffsetRange] = []
    start = whole.start
    for done in range(pieces):
        end = start + (whole.end - start) // (pieces - done)
        if end > start:
            cut.append(replace(whole, start=start, end=end))
        start = end
    return cut


def pack(ranges: Sequence[OffsetRange], division: TaskDivision) -> list[list[OffsetRange]]:
    """Distribute ranges over tasks of about equal size.

    The number of tasks is the number of cores. There are more tasks if the tasks would be long, and fewer if they
    would be very short. There are never fewer tasks than `minPartitions`, and a task of several ranges never has more
    offsets than `maxRecordsPerPartition`.
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
    """Assign each range, the longest first, to the task with the fewest offsets so far."""
    bins: list[tuple[int, int, list[OffsetRange]]] = [(0, number, []) for number in range(count)]
    for each in sorted(ranges, key=lambda one: (-one.size, one.topic_partition, one.start)):
        size, number, task = heapq.heappop(bins)
        task.append(each)
        heapq.heappush(bins, (size + each.size, number, task))
    in_order = sorted(bins, key=lambda one: one[1])
    return [sorted(task, key=_place) for _, _, task in in_order]


def _place(wanted: OffsetRange) -> tuple[TopicPartition, int]:
    return wanted.topic_partition, wanted.start
