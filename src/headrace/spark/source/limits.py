"""Limit the pending offsets that a micro-batch reads. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.spark.options.positions import Positions
from headrace.types import TopicPartition


def waiting(start: Positions, end: Positions) -> dict[TopicPartition, int]:
    """Return the number of offsets from `start` to `end` of each partition that has any."""
    return {each: end[each] - start[each] for each in end if end[each] > start[each]}


def limit_total(start: Positions, end: Positions, max_offsets: int) -> dict[TopicPartition, int]:
    """Move `end` back so that there are about `max_offsets` offsets from `start` to `end`. Each partition has a share.

    As in Spark's Kafka connector, rounding included, the share is proportional to the partition's pending offsets. A
    partition with pending offsets gets at least one, so that no partition starves. So the result may exceed the limit,
    by less than the number of partitions.
    """
    sizes = waiting(start, end)
    total = sum(sizes.values())
    if total <= max_offsets:
        return dict(end)
    shares = {each: max_offsets * (size / total) for each, size in sizes.items()}
    return _take(start, end, sizes, shares)


def limit_bytes(
    start: Positions,
    end: Positions,
    bytes_per_offset: Mapping[TopicPartition, float],
    max_bytes: int,
) -> dict[TopicPartition, int]:
    """Move `end` back so that there are about `max_bytes` from `start` to `end`, by the estimated bytes per offset.

    Every partition reads the same fraction of its pending offsets, and at least one offset.
    """
    sizes = waiting(start, end)
    total = sum(size * bytes_per_offset[each] for each, size in sizes.items())
    if total <= max_bytes:
        return dict(end)
    shares = {each: size * (max_bytes / total) for each, size in sizes.items()}
    return _take(start, end, sizes, shares)


def _take(
    start: Positions,
    end: Positions,
    sizes: Mapping[TopicPartition, int],
    shares: Mapping[TopicPartition, float],
) -> dict[TopicPartition, int]:
    limited = {each: min(end[each], start[each]) for each in end}
    for each, size in sizes.items():
        limited[each] = start[each] + min(size, max(1, math.floor(shares[each])))
    return limited
