"""The partitions that this broker serves, and the errors for those that it does not serve.

A partition of a topic is in one of these states on this broker:

* Served: a replica lies on this broker, and its log is open. `Partition.refusal` says whether this broker leads the
  partition: requests get NOT_LEADER_OR_FOLLOWER if another broker does.
* Offline: a replica lies on this broker, but its data is damaged, its log directory is out of service, or its files
  cannot be opened now. Requests get KAFKA_STORAGE_ERROR.
* Elsewhere: no replica lies on this broker. Requests get NOT_LEADER_OR_FOLLOWER, so that clients look for the leader.
* Unknown: the cluster has no such partition, or its log is being opened. Requests get UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.partitions.topic import Topic
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.errors import (
    ApiError,
    NotLeaderOrFollowerError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
)


class LocalPartitions:
    """The partitions of all topics, as far as this broker serves them."""

    __slots__ = ("_served", "_topics", "broker_id")

    def __init__(self, broker_id: int, replicas: Replicas) -> None:
        """Begin without topics; `show` adds them."""
        self.broker_id = broker_id
        """The id of this broker."""
        self._topics: dict[str, Topic] = {}
        self._served: dict[str, list[Partition | None]] = {}
        """The partitions of each topic by number; None for a partition that this broker does not serve."""
        replicas.on_offline = self._take_offline

    def find(self, name: str, index: int) -> Partition | None:
        """Return a partition of the topic of a name; None if this broker does not serve it."""
        served = self._served.get(name)
        return served[index] if served is not None and 0 <= index < len(served) else None

    def require(self, name: str, index: int) -> Partition:
        """Return a partition that this broker serves.

        Args:
            name: The name of the topic.
            index: The number of the partition.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER or KAFKA_STORAGE_ERROR.
        """
        served = self._served.get(name)
        if served is None or not 0 <= index < len(served):
            raise self._refusal(name, index)
        partition = served[index]
        if partition is None:
            raise self._refusal(name, index)
        return partition

    def _refusal(self, name: str, index: int) -> ApiError:
        topic = self._topics.get(name)
        if topic is None:
            return UnknownTopicOrPartitionError(f"there is no topic {name[:300]!r}")
        if not 0 <= index < len(self._served[name]):
            return UnknownTopicOrPartitionError(f"{name} has no partition {index}")
        if not self.has_replica(topic, index):
            return NotLeaderOrFollowerError(
                f"{name}-{index} lies on the brokers {topic.replicas[index]}, this is broker {self.broker_id}",
            )
        return StorageUnavailableError(
            f"{name}-{index} is not served: its data is damaged, its log directory is out of service, or its "
            "files cannot be opened now; the broker's log says which"
        )

    def of(self, topic: Topic) -> Sequence[Partition | None]:
        """Return the partitions of a topic by number; None for a partition that this broker does not serve."""
        return self._served.get(topic.name, ())

    def led(self, name: str) -> list[int]:
        """Return the numbers of the partitions of a topic that this broker leads; none without a topic."""
        partitions = self._served.get(name, ())
        return [
            index
            for index, partition in enumerate(partitions)
            if partition is not None and not partition.refusal
        ]

    def has_replica(self, topic: Topic, index: int) -> bool:
        """Return whether a replica of a partition lies on this broker, served or offline."""
        return self.broker_id in topic.replicas[index]

    # Changes

    def show(self, topic: Topic, opened: Sequence[Partition | None]) -> None:
        """Serve the first partitions of a topic, or further ones, all at once.

        Args:
            topic: The topic. Its `replicas` contain the partitions.
            opened: The partitions that follow those that are served already.
        """
        present = self._served.get(topic.name, [])
        served = [None if each is None or each.gone else each for each in opened]
        self._served[topic.name] = present + served
        self._topics[topic.name] = topic

    def reopened(self, topic: Topic, index: int, partition: Partition) -> None:
        """Serve a partition that was offline."""
        self._served[topic.name][index] = partition

    def hide(self, topic: Topic) -> None:
        """Serve a topic no longer: it is deleted."""
        del self._served[topic.name], self._topics[topic.name]

    def _take_offline(self, partition: Partition) -> None:
        name, index = partition.topic_partition
        served = self._served.get(name)
        if served is not None and index < len(served) and served[index] is partition:
            served[index] = None  # else the partition is being opened: `show` leaves it out
