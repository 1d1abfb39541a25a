"""What a producer knows of one topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.clients.flows.cluster import NO_TOPIC_ID
from headrace.clients.partitioners import Partitioner
from headrace.clients.producer.batches import PartitionQueue
from headrace.clients.producer.record_checks import check_partition_number
from headrace.errors import ApiError, ErrorCode
from headrace.serdes.plain import BytesSerde
from headrace.serdes.serde import Serde


class ProducerTopic:
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

    def check_partition(self, number: int) -> None:
        """Check that the topic has a partition.

        Raises:
            ConfigError: It is not a number.
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        check_partition_number(number)
        if number not in range(self.count):  # a partitioner of the program's may return anything
            text = f"topic {self.name!r} has {self.count} partitions, none numbered {number!r}"
            raise ApiError.for_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
