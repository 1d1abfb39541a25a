"""What a client knows of a cluster: brokers, topics, partitions and their leaders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import ErrorCode
from headrace.registers import Named
from headrace.types import TopicPartition

NO_LEADER = -1
NO_TOPIC_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker can be reached."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition's place in the cluster."""

    partition: int
    leader: int
    """Node id of the leader, or -1."""
    leader_epoch: int
    """The leader's epoch, or -1 where the broker does not tell."""
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions, by number."""

    name: str
    topic_id: bytes = NO_TOPIC_ID
    """The id as 16 bytes, all zero where the broker does not tell."""
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)
    is_internal: bool = False
    error: ErrorCode = ErrorCode.NONE


class TopicSettings(NamedTuple):
    """What a topic's configuration tells Headrace's clients; None where it says nothing."""

    partitioner: Named | None = None
    serde: Named | None = None
    key_serde: Named | None = None
    may_read: bool = True
    """Whether the client may read that at all."""


@dataclass(slots=True)
class ClusterMetadata:
    """Brokers and topics, as the last answers described them."""

    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    controller_id: int = -1
    cluster_id: str | None = None
    topics: dict[str, TopicMetadata] = field(default_factory=dict)

    def topic_id(self, topic: str) -> bytes:
        """Return a topic's id; all zero while it is unknown."""
        known = self.topics.get(topic)
        return NO_TOPIC_ID if known is None else known.topic_id

    def leader(self, topic_partition: TopicPartition) -> int:
        """Return the leader's node id, or -1 while it is unknown or unreachable."""
        partition = self.partition(topic_partition)
        if partition is None or partition.leader not in self.brokers:
            return NO_LEADER
        return partition.leader

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """Return the leader epoch, or -1 while it is unknown."""
        partition = self.partition(topic_partition)
        return -1 if partition is None else partition.leader_epoch

    def partition(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        """Return what is known of one partition."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions in order; [] while the topic is unknown."""
        known = self.topics.get(topic)
        return (
            [] if known is None else [TopicPartition(topic, number) for number in known.partitions]
        )

    def remember(self, topic: TopicMetadata) -> None:
        """Take over what an answer says of a topic, but never an older leader epoch of the same topic.

        A broker that lags behind may still name the previous leader; believing it would send requests back and forth
        (Kafka's Metadata.updateLatestMetadata). A new topic id starts afresh.
        """
        known = self.topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id or topic.error:
            self.topics[topic.name] = topic
            return
        partitions = {
            number: self._newer(known.partitions.get(number), partition)
            for number, partition in topic.partitions.items()
        }
        self.topics[topic.name] = TopicMetadata(
            topic.name, topic.topic_id, partitions, topic.is_internal, topic.error
        )

    @staticmethod
    def _newer(known: PartitionMetadata | None, told: PartitionMetadata) -> PartitionMetadata:
        if known is not None and -1 < told.leader_epoch < known.leader_epoch:
            return known
        return told
