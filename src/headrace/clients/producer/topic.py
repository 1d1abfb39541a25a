"""One topic that a producer writes to."""

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
    """A topic's partitions, partitioner and serdes, and the queues of its batches."""

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
        """Whether values that are bytes are used without a call of the serde."""
        self.count = 0
        """The number of partitions."""
        self.available: Sequence[int] = ()
        """The partitions with a leader; all partitions if none has a leader."""
        self.queues: dict[int, PartitionQueue] = {}
        self.topic_id = NO_TOPIC_ID
        """The topic's id from the metadata; zero if the broker does not return ids."""

    def is_recreated(self, topic_id: bytes) -> bool:
        """Store the topic's id; return whether the topic was deleted and created again."""
        if topic_id in {NO_TOPIC_ID, self.topic_id}:
            return False
        known, self.topic_id = self.topic_id, topic_id
        return known != NO_TOPIC_ID

    def check_partition(self, number: int) -> None:
        """Check that the topic has a partition.

        Raises:
            ConfigError: The partition is not a number.
            ApiError: UNKNOWN_TOPIC_OR_PARTITION, if the topic does not have the partition.
        """
        check_partition_number(number)
        if number not in range(self.count):  # the number may come from a partitioner of the program
            text = f"topic {self.name!r} has {self.count} partitions, and no partition {number!r}"
            raise ApiError.for_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
