"""Cluster metadata: brokers, topics, partitions and their leaders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from headrace.errors import ErrorCode
from headrace.registers import Named
from headrace.types import TopicPartition

MAX_BROKERS = 10_000
"""The largest number of brokers of a cluster."""
NO_LEADER = -1
NO_TOPIC_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of one broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class CurrentLeader(Protocol):
    """The leader that a response names with an error (KIP-951)."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(Protocol):
    """The address of a leader that a response names."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The leader and the replicas of one partition."""

    partition: int
    leader: int
    """The node id of the leader; -1 if there is none."""
    leader_epoch: int
    """The leader's epoch; -1 if the broker does not return it."""
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions, by number."""

    name: str
    topic_id: bytes = NO_TOPIC_ID
    """The topic id, 16 bytes; zero if the broker does not return it."""
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)
    is_internal: bool = False
    error: ErrorCode = ErrorCode.NONE


class TopicSettings(NamedTuple):
    """The settings for Headrace's clients in a topic's configuration; None for a setting that is not there."""

    partitioner: Named | None = None
    serde: Named | None = None
    key_serde: Named | None = None
    may_read: bool = True
    """Whether the client may read the configuration."""


@dataclass(slots=True)
class ClusterMetadata:
    """Brokers and topics, from the last responses."""

    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    controller_id: int = -1
    cluster_id: str | None = None
    topics: dict[str, TopicMetadata] = field(default_factory=dict)

    def topic_id(self, topic: str) -> bytes:
        """Return a topic's id; zero while it is unknown."""
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
        """Return the metadata of one partition; None if it is unknown."""
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions in order; [] while the topic is unknown."""
        known = self.topics.get(topic)
        return (
            [] if known is None else [TopicPartition(topic, number) for number in known.partitions]
        )

    def remember(self, topic: TopicMetadata) -> None:
        """Take over a response about a topic, except partitions with an older leader epoch than the known one.

        A broker that lags behind may return the previous leader; using it would send requests back and forth (see
        Kafka's Metadata.updateLatestMetadata). After a change of the topic id every epoch is accepted.
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

    def learn_leader(
        self,
        topic_partition: TopicPartition,
        leader: CurrentLeader | None,
        endpoints: Iterable[NodeEndpoint],
        node: int,
    ) -> bool:
        """Store the leader that a response names with an error. Return whether requests can go to this leader now.

        Args:
            topic_partition: The partition.
            leader: The leader and its epoch; None if the response names none.
            endpoints: The addresses in the response.
            node: The node id of the broker that has responded.
        """
        known = self.partition(topic_partition)
        if leader is None or known is None or leader.leader_epoch < known.leader_epoch:
            return False
        if leader.leader_epoch == known.leader_epoch:  # named by an earlier response
            return leader.leader_id == self.leader(topic_partition) != node
        for each in endpoints:
            known_address = each.node_id in self.brokers
            if each.node_id == leader.leader_id and (
                known_address or len(self.brokers) < MAX_BROKERS
            ):
                address = BrokerAddress(each.node_id, each.host, each.port, each.rack)
                self.brokers[each.node_id] = address
        if leader.leader_id not in self.brokers:
            return False
        partitions = self.topics[topic_partition.topic].partitions
        partitions[topic_partition.partition] = replace(
            known,
            leader=leader.leader_id,
            leader_epoch=leader.leader_epoch,
            error=ErrorCode.NONE,
        )
        return True

    @staticmethod
    def _newer(known: PartitionMetadata | None, told: PartitionMetadata) -> PartitionMetadata:
        if known is not None and -1 < told.leader_epoch < known.leader_epoch:
            return known
        return told
