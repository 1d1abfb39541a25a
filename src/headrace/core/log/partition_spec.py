"""The metadata of a partition that its log needs, and the name of the log in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.log.config import LogConfig
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The metadata of a partition of this broker, as far as its log needs it."""

    topic_partition: TopicPartition
    topic_id: bytes
    config: LogConfig
    is_replicated: bool = False
    """Whether other brokers have replicas, so that records above the stored high watermark may be truncated."""

    @property
    def checkpoint_key(self) -> str:
        """The name of the log in checkpoints."""
        return checkpoint_key(self.topic_partition, self.topic_id)


def checkpoint_key(partition: TopicPartition, topic_id: bytes) -> str:
    """Return the name of a log in checkpoints: topic, partition, topic id."""
    return f"{partition.topic} {partition.partition} {topic_id.hex()}"
