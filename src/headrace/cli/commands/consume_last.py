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
"""The factor by which the next read of a partition is larger, if the previous read found too few records."""


def last_records(
    consumer: Consumer, partitions: Collection[TopicPartition], count: int
) -> tuple[list[ConsumerRecord], dict[TopicPartition, int]]:
    """Return the newest records over all partitions, the oldest first.

    Records of one partition stay in offset order. Offsets without a record (transaction markers, compacted records,
    records with other tags) do not count: the reader goes back until it has found enough records.

    Args:
        consumer: A consumer without a group. Its assignment is replaced.
        partitions: The partitions to read.
        count: The number of records over all partitions.

    Returns:
        The records, and the end offset of each partition at the time of reading.
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
    # A merge instead of a sort: within a partition, times may decrease, but the offset order must stay.
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
