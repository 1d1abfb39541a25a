"""Replaces damaged replicas: what a start finds damaged is fetched anew, while another replica is in sync.

1. The broker starts, and cannot open the log of a partition with several replicas.
2. The replica leaves the ISR and the ELR: it does not have what it has promised. If this broker leads the partition, it
   leads no longer, and the controller elects an in-sync replica. The replica stays while no other one is in sync,
   because then the damaged log has the only copy of committed records: a person has to decide.
3. When the image has the new state, the directory of the log is set aside, and an empty log follows the leader.

A damaged schedule is fetched anew in the same way. The log of its partition stays.

After a crash between two steps, the next start continues: the log is still damaged, or it is empty and not in sync.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from headrace.broker.context import LatestTime
from headrace.broker.metadata.commit_lane import Change, CommitError, CommitLane
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.partition_opening import leadership, opening_spec
from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.partition_loader import PartitionLoader
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import is_schedule, topic_of
from headrace.broker.waiting.purgatory import Alarm, Purgatory
from headrace.core.cluster.election import without
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import NO_LEADER, REGISTRATIONS, PartitionState, encode
from headrace.core.replica.role import NO_REGISTRATION, Role
from headrace.errors import ApiError, StorageError
from headrace.ports import Journal, Put, check_of
from headrace.types import TopicPartition

CHECK_INTERVAL_MS: Final = 2_000
"""The time between two checks while there are damaged replicas, in milliseconds."""


class _Damaged(NamedTuple):
    """A replica whose log cannot be opened."""

    name: TopicPartition
    topic: Topic
    reason: str


class DamagedReplicas:
    """The replicas of this broker whose logs a start could not open."""

    __slots__ = (
        "_alarm",
        "_is_in_flight",
        "_journal",
        "_lane",
        "_loader",
        "_local",
        "_metadata",
        "_purgatory",
        "_replicas",
        "_time",
        "_topics",
    )

    def __init__(
        self,
        topics: Topics,
        local: LocalPartitions,
        loader: PartitionLoader,
        replicas: Replicas,
        *,
        metadata: MetadataWriter,
        purgatory: Purgatory,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Look for damaged replicas when the broker is open, and from then on while there are any."""
        self._topics = topics
        self._local = local
        self._loader = loader
        self._replicas = replicas
        self._metadata = metadata
        self._lane: CommitLane = metadata.lane("damaged")
        self._purgatory = purgatory
        self._time = time
        self._journal = journal
        self._is_in_flight = False
        """Whether a commit is in flight."""
        self._alarm = Alarm(self._check)
        purgatory.add(self._alarm, 0)

    def _check(self) -> None:
        damaged = self._damaged()
        if not damaged:
            return
        self._purgatory.add(self._alarm, self._time.now_ms + CHECK_INTERVAL_MS)
        if self._replicas.registration == NO_REGISTRATION or self._is_in_flight:
            return
        for each in damaged:
            if self._has_left(each):
                self._replace(each)
            elif self._may_leave(each):
                self._is_in_flight = True
                self._lane.merge(partial(self._leaving, each)).on_done(self._left)
                return

    def _damaged(self) -> list[_Damaged]:
        """Return the damaged replicas of partitions with several replicas."""
        found: list[_Damaged] = []
        for log_dir in self._replicas.store.dirs:
            for name, reason in log_dir.logs.failed.items():
                topic = self._topics.get(topic_of(name))
                if (
                    topic is not None
                    and name.partition < topic.partitions_count
                    and self._local.has_replica(topic, name.partition)
                    and len(topic.replicas[name.partition]) > 1
                ):
                    found.append(_Damaged(name, topic, str(reason)))
        return found

    def _state(self, damaged: _Damaged) -> PartitionState:
        return self._topics.state(damaged.topic, damaged.name.partition)

    # Leave the in-sync replicas

    def _has_left(self, damaged: _Damaged) -> bool:
        state, own = self._state(damaged), self._replicas.broker_id
        return own not in state.isr and own not in state.elr and own != state.leader

    def _may_leave(self, damaged: _Damaged) -> bool:
        """Return whether another replica is in sync. Its broker need not be live."""
        return any(each != self._replicas.broker_id for each in self._state(damaged).isr)

    def _leaving(self, damaged: _Damaged) -> Change | None:
        """Return the change with which a damaged replica leaves; None if there is nothing to change any more."""
        if self._topics.get(damaged.topic.name) is not damaged.topic:
            return None
        if self._has_left(damaged) or not self._may_leave(damaged):
            return None
        image, before = self._metadata.image, self._state(damaged)
        key = state_key(damaged.topic.topic_id, damaged.name.partition)
        checks = [check_of(key, image.get(key))]
        if before.leader != NO_LEADER:
            registration = f"{REGISTRATIONS}{before.leader}"
            checks.append(check_of(registration, image.get(registration)))
        return checks, [Put(key, encode(without(before, self._replicas.broker_id)))]

    def _left(self, error: CommitError) -> None:
        self._is_in_flight = False
        if error is None:
            self._purgatory.add(self._alarm, 0)

    # Begin anew

    def _replace(self, damaged: _Damaged) -> None:
        topic, index = damaged.topic, damaged.name.partition
        partition = None
        try:
            if is_schedule(damaged.name):
                partition = self._local.find(topic.name, index)
                if partition is None or partition.role is not Role.FOLLOWER:
                    return
                self._loader.begin_schedule_anew(partition, self._time.now_ms)
            else:
                partition = self._loader.begin_anew(
                    opening_spec(topic, index),
                    leadership(self._state(damaged), topic.replicas[index]),
                    is_internal=topic.is_internal,
                    now_ms=self._time.now_ms,
                )
                if partition is not None:
                    self._local.reopened(topic, index, partition)
        except (ApiError, StorageError) as error:
            self._journal.error(
                "damaged_replica_not_replaced", partition=str(damaged.name), error=str(error)
            )
            return
        if partition is not None:
            self._journal.warning(
                "damaged_replica_replaced", partition=str(damaged.name), reason=damaged.reason
            )
