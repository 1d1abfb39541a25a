"""Creates, loads and unloads the topic `__consumer_offsets`, in which the group coordinator stores its groups."""

from __future__ import annotations

from headrace.broker.configs.broker_settings import BrokerSettings
from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topics import Topics
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.errors import StorageError
from headrace.ports import Journal


class OffsetsTopic:
    """Creates `__consumer_offsets`, and loads its partitions into the group coordinator."""

    __slots__ = ("_groups", "_journal", "_settings", "_topics")

    def __init__(
        self, settings: BrokerSettings, topics: Topics, groups: GroupCoordinator, journal: Journal
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._journal = journal

    def ensure(self, now_ms: int) -> Topic:
        """Return the topic. The first call creates it.

        Raises:
            ApiError: The topic cannot be created.
        """
        topic = self._topics.get(OFFSETS_TOPIC)
        if topic is None:
            config = self._settings.config
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
                "headrace.durability": "fsync",
            }
            topic = self._topics.create(
                OFFSETS_TOPIC, config.offsets_topic_num_partitions, settings, now_ms=now_ms
            )
            self.load(now_ms)
        return topic

    def load(self, now_ms: int) -> None:
        """Load the groups of all partitions, if the topic exists."""
        topic = self._topics.get(OFFSETS_TOPIC)
        if topic is None:
            return
        for index, partition in enumerate(topic.partitions):
            if partition is not None:
                self.load_partition(index, now_ms)

    def load_partition(self, index: int, now_ms: int) -> None:
        """Load the groups of one partition. If that fails, the broker refuses these groups and serves the others."""
        try:
            self._groups.load(index, now_ms)
        except StorageError as error:
            self._journal.error(
                "group_partition_not_loaded",
                partition=index,
                error=str(error),
                meaning="groups in this partition are refused with NOT_COORDINATOR",
                remedy=f"restore the directory {OFFSETS_TOPIC}-{index} from a backup, or accept the loss: "
                "docs/reference/on-disk-format.md, 'A damaged partition of the broker'",
            )
            return
        forgotten = self._groups.forget_deleted_topics(
            index, lambda name: self._topics.get(name) is not None, now_ms
        )
        if forgotten:
            self._journal.info(
                "offsets_of_deleted_topics_forgotten", partition=index, offsets=forgotten
            )

    def unload(self) -> None:
        """Unload all groups. Requests that wait for a commit get an error: the commit may be lost."""
        topic = self._topics.get(OFFSETS_TOPIC)
        for index in range(0 if topic is None else len(topic.partitions)):
            self._groups.unload(index)
