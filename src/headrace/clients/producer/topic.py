"""What a producer knows of one topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.clients.flows.cluster import NO_TOPIC_ID
from headrace.clients.producer.batches import PartitionQueue
from headrace.clients.producer.partitioners import Partitioner
from headrace.serdes.plain import BytesSerde
from headrace.serdes.serde import Serde


class Topic:
    """What a producer knows of a topic that it writes to."""

    __slots__ = (
        "available",
        "batch_closed",
        "bytes_as_they_are",
        "count",
        "name",
        "partitioner",
        "queues",
        "serialize_key",
        "serialize_value",
        "topic_id",
    )

    def __init__(self, name: str, partitioner: Partitioner, key_serde: Serde, serde: Serde) -> None:
        self.name = name
        self.partitioner = partitioner
        self.batch_closed: Callable[[int, Sequence[int]], object] | None = getattr(
            partitioner, "batch_closed", None
        )
        self.serialize_key = key_serde.serialize
        self.serialize_value = serde.serialize
        self.bytes_as_they_are = isinstance(serde, BytesSerde)
        """Whether values of bytes need no call at all."""
        self.count = 0
        self.available: Sequence[int] = ()
        """Partitions with a leader, or all when none has."""
        self.queues: dict[int, PartitionQueue] = {}
        self.topic_id = NO_TOPIC_ID
        """As far as metadata tell."""

    def is_recreated(self, topic_id: bytes) -> bool:
        """Take note of the topic's id; return whether the topic was deleted and created again."""
        if topic_id in {NO_TOPIC_ID, self.topic_id}:
            return False
        known, self.topic_id = self.topic_id, topic_id
        return known != NO_TOPIC_ID
