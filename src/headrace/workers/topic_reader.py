"""Reads all records that a topic has now, without a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from headrace.clients.consumer.blocking import Consumer
from headrace.clients.consumer.records import ConsumerRecord
from headrace.errors import ApiError, ErrorCode
from headrace.types import TopicPartition

POLL_S: Final = 1.0
"""The longest time in seconds that one poll waits for records."""


def read_topic(
    consumer: Consumer, topic: str, start: Mapping[TopicPartition, int] | None = None
) -> Iterator[ConsumerRecord]:
    """Yield the records that a topic has now, or no records if the topic does not exist.

    Args:
        consumer: A consumer that no other code uses.
        topic: The topic.
        start: The first offset, by partition. Other partitions are read from their beginning. None: all partitions.
    """
    try:
        partitions = consumer.partitions_for(topic)
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return
    ends = consumer.end_offsets(partitions)
    begins = consumer.begin_offsets(partitions)
    first = {name: max(begins[name], (start or {}).get(name, 0)) for name in partitions}
    open_partitions = {name for name in partitions if first[name] < ends[name]}
    consumer.assign({name: first[name] for name in open_partitions})
    while open_partitions:
        for record in consumer.poll(POLL_S):
            if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                yield record
        positions = consumer.positions()
        open_partitions = {name for name in open_partitions if (positions[name] or 0) < ends[name]}
    consumer.unsubscribe()
