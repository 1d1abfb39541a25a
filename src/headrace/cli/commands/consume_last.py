"""The newest records of several partitions together, for `consume --last`."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.clients.consumer.blocking import Consumer
    from headrace.clients.consumer.records import ConsumerRecord
    from headrace.types import TopicPartition

POLL_S: Final = 0.5
_FURTHER: Final = 4
"""By how much more is read of a partition that had too few records."""


def last_records(
    consumer: Consumer, partitions: Collection[TopicPartition], count: int
) -> tuple[list[ConsumerRecord], dict[TopicPartition, int]]:
    """Return the newest records of all partitions, the oldest of them first.

    Records of one partition stay in the order of their offsets. Offsets without a record (of transactions, of what was
    compacted, of what has another tag) do not count: the reader goes back as far as it has to.

    Args:
        consumer: A consumer without a group; what it is assigned is replaced.
        partitions: What is read.
        count: How many records, of all partitions together.

    Returns:
        The records, and where each partition ended when they were read.
    """
    begins, ends = consumer.begin_offsets(partitions), consumer.end_offsets(partitions)
    found: dict[TopicPartition, deque[ConsumerRecord]] = {}
    window = count
    lacking = {where for where in partitions if begins[where] < ends[where]}
    while lacking:
        starts = {where: max(begins[where], ends[where] - window) for where in lacking}
        found |= _read(consumer, starts, ends, count)
        lacking = {
            where
            for where, start in starts.items()
            if len(found[where]) < count and start > begins[where]
        }
        window *= _FURTHER
    # A merge, and no sort: times may go back within a partition, offsets may not.
    merged = heapq.merge(
        *(found[where] for where in sorted(found)), key=lambda record: record.timestamp_ms
    )
    return list(deque(merged, maxlen=count)), dict(ends)


def _read(
    consumer: Consumer,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    count: int,
) -> dict[TopicPartition, deque[ConsumerRecord]]:
    """Return the last records of each partition between two offsets."""
    from headrace.types import TopicPartition

    found: dict[TopicPartition, deque[ConsumerRecord]] = {
        where: deque(maxlen=count) for where in starts
    }
    consumer.assign(starts)
    unfinished = set(starts)
    while unfinished:
        for record in consumer.poll(POLL_S):
            where = TopicPartition(record.topic, record.partition)
            if record.offset < ends[where]:
                found[where].append(record)
        positions = consumer.positions()
        done = {where for where in unfinished if (positions[where] or 0) >= ends[where]}
        unfinished -= done
        if done:
            consumer.pause(done)
    return found
