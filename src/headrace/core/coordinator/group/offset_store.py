"""Committed offsets by group, topic and partition. Changed by replay only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.core.coordinator.group.records import CommittedOffset, OffsetCommit

Offsets = Mapping[str, Mapping[int, CommittedOffset]]
"""Topic -> partition -> committed offset."""


class OffsetStore:
    """The committed offsets of all groups of a shard."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}

    def replay(self, record: OffsetCommit) -> None:
        """Set or forget one offset; empty levels do not stay behind."""
        if record.committed is not None:
            topics = self._groups.setdefault(record.group_id, {})
            topics.setdefault(record.topic, {})[record.partition] = record.committed
            return
        topics = self._groups.get(record.group_id, {})
        partitions = topics.get(record.topic, {})
        partitions.pop(record.partition, None)
        if not partitions:
            topics.pop(record.topic, None)
        if not topics:
            self._groups.pop(record.group_id, None)

    def of_group(self, group_id: str) -> Offsets:
        """Return a group's offsets; empty if it has none."""
        return self._groups.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return one committed offset."""
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def of_topic(self, topic: str) -> Iterator[tuple[str, int]]:
        """Yield (group id, partition) of every offset committed for a topic."""
        for group_id, topics in self._groups.items():
            for partition in topics.get(topic, ()):
                yield group_id, partition
