"""The partitions of a cluster: their states in the metadata, and their replicas at the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.core.cluster.partition_states import present_state, state_key
from headrace.core.cluster.records import (
    LIVE_BROKERS,
    NO_LEADER,
    REGISTRATIONS,
    TOPICS,
    PartitionState,
    RegistrationRecord,
    TopicRecord,
    decode,
)
from headrace.core.replica.role import Role
from headrace.errors import UnknownTopicOrPartitionError
from headrace.server.service import BrokerService
from headrace.testing.cluster.node import ClusterNode
from headrace.testing.cluster.shared_metadata import SharedMetadata
from headrace.types import TopicPartition


class ReplicaView(NamedTuple):
    """A replica at one moment.

    Attributes:
        leads: Whether the broker leads the partition.
        leader_epoch: The leader epoch of the role.
        log_start_offset: The offset of the first record.
        high_watermark: The offset below which records are committed, as the replica knows it.
        log_end_offset: The offset after the last record.
    """

    leads: bool
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int


Views = Mapping[int, Mapping[TopicPartition, ReplicaView]]
"""The replicas of each broker that handles requests."""


class ReplicaViews:
    """Looks at the partitions of a cluster."""

    def __init__(self, metadata: SharedMetadata, nodes: Mapping[int, ClusterNode]) -> None:
        """Look at a cluster.

        Args:
            metadata: The metadata of the cluster.
            nodes: The brokers by id.
        """
        self._metadata = metadata
        self._nodes = nodes

    # The metadata

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Return the partitions of a topic, or of all topics.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
        """
        names = [topic]
        if topic is None:
            keys = [entry.key for entry in self._metadata.entries()]
            names = [key.removeprefix(TOPICS) for key in keys if key.startswith(TOPICS)]
        return [
            TopicPartition(name, index)
            for name in names
            if name is not None
            for index in range(len(self._record(name).replicas))
        ]

    def replicas(self, where: TopicPartition) -> tuple[int, ...]:
        """Return the brokers with a replica of a partition. The first one is the preferred leader.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic, or it has no such partition.
        """
        replicas = self._record(where.topic).replicas
        if not 0 <= where.partition < len(replicas):
            raise UnknownTopicOrPartitionError(f"{where.topic} has no partition {where.partition}")
        return replicas[where.partition]

    def state(self, where: TopicPartition) -> PartitionState:
        """Return the present state of a partition in the metadata.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic, or it has no such partition.
        """
        replicas, topic_id = self.replicas(where), self._record(where.topic).topic_id
        entry = self._metadata.get(state_key(bytes.fromhex(topic_id), where.partition))
        stored = None if entry is None else decode(entry, PartitionState)
        epochs = {number: self._broker_epoch(number) for number in self._nodes}
        return present_state(stored, replicas, epochs)

    def leader(self, where: TopicPartition) -> int:
        """Return the live broker that leads a partition; -1 if there is none."""
        leader = self.state(where).leader
        return leader if self.is_live(leader) else NO_LEADER

    def is_live(self, broker: int) -> bool:
        """Return whether a broker is registered with a session that has not ended."""
        return self._metadata.get(f"{LIVE_BROKERS}{broker}") is not None

    def _record(self, topic: str) -> TopicRecord:
        entry = self._metadata.get(TOPICS + topic)
        if entry is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
        return decode(entry, TopicRecord)

    def _broker_epoch(self, broker: int) -> int:
        entry = self._metadata.get(f"{REGISTRATIONS}{broker}")
        return 0 if entry is None else decode(entry, RegistrationRecord).broker_epoch

    # The replicas

    def look(self, wheres: Iterable[TopicPartition]) -> Views:
        """Return the replicas of partitions at the brokers that handle requests, one broker after the other."""
        wanted = list(wheres)

        def views(service: BrokerService) -> dict[TopicPartition, ReplicaView]:
            replicas = service.broker.services.replicas
            found = {where: replicas.find(where) for where in wanted}
            return {
                where: ReplicaView(
                    each.role is Role.LEADER,
                    each.leader_epoch,
                    each.log_start_offset,
                    each.high_watermark,
                    each.log.log_end_offset,
                )
                for where, each in found.items()
                if each is not None
            }

        return {
            number: node.run(views) for number, node in self._nodes.items() if node.is_responsive
        }

    def not_served(self, topic: str) -> str:
        """Return which partition of a topic is not served by its leader yet; "" if all are."""
        wheres = self.partitions(topic)
        views = self.look(wheres)
        for where in wheres:
            state = self.state(where)
            view = views.get(state.leader, {}).get(where)
            if view is None or not view.leads or view.leader_epoch != state.leader_epoch:
                return f"broker {state.leader} does not lead {where} yet"
        return ""

    def not_in_sync(self, topic: str | None) -> str:
        """Return which replica of a topic, or of all topics, is not in sync; "" if all are.

        All replicas of a partition are in sync if all of them are in-sync replicas, and have everything that the leader
        had when this method began. Clients may write meanwhile.
        """
        wheres = self.partitions(topic)
        states = {where: self.state(where) for where in wheres}
        before, after = self.look(wheres), self.look(wheres)
        for where, state in states.items():
            reason = self._lag(where, state, before, after)
            if reason:
                return f"{where}: {reason}"
            if self.state(where) != state:
                return f"{where}: its state changes"
        return ""

    def _lag(
        self, where: TopicPartition, state: PartitionState, before: Views, after: Views
    ) -> str:
        out = sorted(set(self.replicas(where)) - set(state.isr))
        if out:
            return f"the replicas of {out} are not in sync replicas, which are {list(state.isr)}"
        leader = before.get(state.leader, {}).get(where)
        if leader is None or not leader.leads or leader.leader_epoch != state.leader_epoch:
            return f"broker {state.leader} does not lead it in epoch {state.leader_epoch} yet"
        end = leader.log_end_offset
        for each in state.isr:
            view = after.get(each, {}).get(where)
            if view is None or view.leader_epoch != state.leader_epoch:
                return f"broker {each} does not follow leader {state.leader} yet"
            if view.log_end_offset < end:
                return f"broker {each} has the log end offset {view.log_end_offset}, leader {state.leader} has {end}"
            if view.leads and view.high_watermark < end:
                return f"its leader {each} has records that are not committed"
        return ""
