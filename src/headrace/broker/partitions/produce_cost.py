"""The cost of a Produce request before it is appended, which decides whether the broker handles it in steps.

A request is handled in steps if it is long, if its batches have to be decoded or compressed again, or if it creates the
files of many partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topics import Topics
from headrace.broker.waiting.steps import ENTRY_COST, STEP_COST
from headrace.protocol.messages.produce import PartitionProduceData, TopicProduceData
from headrace.records.batch import RECORDS_COUNT, unpack_header
from headrace.types import FileRange

COST_AT_ONCE: Final = 2 * STEP_COST
"""The greatest cost of a request that is not handled in steps: some eight megabytes, or a thousand partitions."""
RECORD_COST: Final = 400
"""The cost of checking one record: one and a half microseconds."""
_PARTITION_COST: Final = 2 * ENTRY_COST
"""The cost of a partition without its batch."""
_PARTITIONS_BEGUN_AT_ONCE: Final = 25
"""The greatest number of partitions that get their first batch in a request that is not handled in steps."""


def recompresses(topics: Topics, requested: Sequence[TopicProduceData]) -> bool:
    """Return whether batches may have to be compressed again."""
    for topic in requested:  # this runs in every request, hence no any()
        found = topics.get(topic.name)
        if found is not None and found.config.compression_type != "producer":
            return True
    return False


def cost_of(requested: Sequence[TopicProduceData]) -> int:
    """Return the cost of appending batches that need no decoding and no new files."""
    cost = 0
    for topic in requested:  # this runs in every request, hence no sum()
        cost += ENTRY_COST
        for data in topic.partition_data:
            cost += _PARTITION_COST + (0 if data.records is None else len(data.records))
    return cost


def decodes_several(topics: Topics, requested: Sequence[TopicProduceData]) -> bool:
    """Return whether a topic requires that batches are decoded, which may take a step for each batch."""
    configs = [found.config for topic in requested if (found := topics.get(topic.name))]
    return any(
        each.compacts or each.headrace_ttl_enable or each.headrace_delay_enable for each in configs
    )


def begins_several(partitions: LocalPartitions, requested: Sequence[TopicProduceData]) -> bool:
    """Return whether so many partitions get their first batch that creating their files takes longer than a step."""
    if len(requested) == 1 and len(requested[0].partition_data) <= _PARTITIONS_BEGUN_AT_ONCE:
        return False
    begun = 0
    for topic in requested:
        for data in topic.partition_data:
            begun += is_empty(partitions, topic.name, data)
    return begun > _PARTITIONS_BEGUN_AT_ONCE


def is_empty(partitions: LocalPartitions, name: str, data: PartitionProduceData) -> bool:
    """Return whether a partition has no batch yet."""
    partition = partitions.find(name, data.index)
    return partition is not None and partition.log.log_end_offset == 0


def record_count(data: PartitionProduceData) -> int:
    """Return the number of records in the header of a batch that was decoded."""
    assert data.records is not None
    assert not isinstance(data.records, FileRange)
    count: int = unpack_header(data.records)[RECORDS_COUNT]
    return max(0, count)
