"""One topic, as `Topics` has it."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.partition import Partition
from headrace.broker.topic_names import INTERNAL_TOPICS
from headrace.config.topic import TopicConfig
from headrace.errors import StorageUnavailableError, UnknownTopicOrPartitionError


class Topic:
    """One topic."""

    __slots__ = (
        "config",
        "directory_ids",
        "is_internal",
        "name",
        "partitions",
        "settings",
        "topic_id",
    )

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        settings: Mapping[str, str],
        config: TopicConfig,
        directory_ids: list[str],
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.settings = dict(settings)
        """What was set on the topic itself, as text under Kafka's names."""
        self.config = config
        self.is_internal = name in INTERNAL_TOPICS
        self.partitions: list[Partition | None] = []
        """By number; None where it cannot be served: the data is damaged, or the log directory out of service."""
        self.directory_ids = directory_ids
        """The log directory of each partition; "" for the first one."""

    def partition(self, index: int) -> Partition:
        """Return one partition.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION, or KAFKA_STORAGE_ERROR when it cannot be served.
        """
        if not 0 <= index < len(self.partitions):
            raise UnknownTopicOrPartitionError(f"{self.name} has no partition {index}")
        partition = self.partitions[index]
        if partition is None:
            raise StorageUnavailableError(
                f"{self.name}-{index} is not served: its data is damaged, its log directory is out of service, or its "
                "files cannot be opened now; the broker's log says which"
            )
        return partition
