"""Loads and unloads the topic `__consumer_offsets`, in which the group coordinator stores its groups."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.context import LatestTime
from headrace.broker.coordinators.loading import Loading
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topics import Topics
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.broker.waiting.steps import OFFSET_COST, Steps, Work
from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.ports import Journal


class OffsetsTopic:
    """Loads the partitions of `__consumer_offsets` into the group coordinator."""

    __slots__ = ("_groups", "_journal", "_partitions", "_topics", "loading")

    def __init__(
        self,
        topics: Topics,
        partitions: LocalPartitions,
        groups: GroupCoordinator,
        *,
        steps: Steps,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._groups = groups
        self._journal = journal
        self.loading = Loading(groups, steps, time, self._refuse, journal)
        """Loads the partitions of the topic."""

    def begin_all(self) -> Work[None]:
        """Begin to coordinate all partitions, if the topic exists. The work loads them."""
        indexes = self._partitions.led(OFFSETS_TOPIC)
        self.loading.begin(indexes)
        return self._load(indexes)

    def begin(self, index: int) -> None:
        """Begin to coordinate a partition: this broker has become its leader."""
        self.loading.begin([index])
        self.loading.run(self._load([index]))

    def end(self, index: int) -> None:
        """Stop coordinating a partition: this broker leads it no longer."""
        self.loading.end(index)

    def end_all(self) -> None:
        """Stop coordinating all partitions. Requests that wait for a commit get an error: the commit may be lost."""
        topic = self._topics.get(OFFSETS_TOPIC)
        for index in range(0 if topic is None else topic.partitions_count):
            self._groups.unload(index)

    def _load(self, indexes: Iterable[int]) -> Work[None]:
        for index in indexes:
            yield from self.loading.replay(index)
            yield from self.loading.activate(index)
            yield from self._forget_deleted_topics(index)

    def _forget_deleted_topics(self, index: int) -> Work[None]:
        forgotten = 0
        for count in self._groups.forget_deleted_topics(
            index, lambda name: self._topics.get(name) is not None, self.loading.now_ms
        ):
            forgotten += count
            yield count * OFFSET_COST
        if forgotten:
            self._journal.info(
                "offsets_of_deleted_topics_forgotten", partition=index, offsets=forgotten
            )

    def _refuse(self, index: int, error: Exception) -> None:
        """Log that the broker refuses the groups of one partition, and serves the others."""
        self._journal.error(
            "group_partition_not_loaded",
            partition=index,
            error=str(error),
            meaning="groups in this partition are refused with NOT_COORDINATOR",
            remedy=f"restore the directory {OFFSETS_TOPIC}-{index} from a backup, or accept the loss: "
            "docs/reference/on-disk-format.md, 'A damaged partition of the broker'",
        )
