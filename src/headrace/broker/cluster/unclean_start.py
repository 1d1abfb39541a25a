"""The replicas of a broker that may lack records which other brokers count on, when the broker starts.

A replica in the ISR or in the ELR may be elected, so it has to have all committed records. After a power cut, on a new
disk or without its disk, it may lack some. Such a replica leaves both. It joins the ISR again when it has fetched what
it lacks. These replicas leave:

* all replicas, if the broker has another first log directory than at its last registration;
* the replicas in a log directory that was never used before;
* the replicas that are not served, because their directory is missing or their log is damaged. The last replica in ISR
  and ELR stays: no other broker could lead the partition, and this broker can again when its disk is back;
* the replicas that reported records before they were synced, after a power cut (`UnsyncedTopics`).

The model of replication has shown the order to be safe (`docs/reports/replication-model.md`): (1) The broker registers,
without a live entry. (2) The replicas leave. (3) The broker writes its live entry. A process that ends between two of
these commits begins with the first one again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from headrace.broker.metadata.commit_lane import Change
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.partition import Partition
from headrace.core.cluster.controller import ControlledTopic, Decisions, StateChange
from headrace.core.cluster.election import without
from headrace.core.cluster.membership import Membership
from headrace.core.cluster.records import (
    NO_LEADER,
    REGISTRATIONS,
    LastKnown,
    RegistrationRecord,
    decode,
)

Reason = Literal["other incarnation", "new directory", "not served", "power cut"]
"""The reason why a replica may lack records."""


class Departing(NamedTuple):
    """A replica of this broker that may lack records."""

    topic: Topic
    partition: int
    reason: Reason
    log_end: LastKnown | None = None
    """The end of the log after a power cut, of which nothing more can be lost. None for other reasons."""


class Departures:
    """The replicas of this broker that have to leave ISR and ELR."""

    __slots__ = ("_broker_id", "_decisions", "_local", "_metadata", "_topics")

    def __init__(
        self,
        topics: Topics,
        local: LocalPartitions,
        metadata: MetadataWriter,
        membership: Membership,
    ) -> None:
        """Decide by the image.

        Args:
            topics: The topics.
            local: The partitions of this broker.
            metadata: The metadata store.
            membership: The live brokers.
        """
        self._topics = topics
        self._local = local
        self._broker_id = local.broker_id
        self._metadata = metadata
        self._decisions = Decisions(metadata.image, topics.states, membership)

    def find(self, incarnation: str) -> list[Departing]:
        """Return the replicas that may lack records, whether they are in ISR or ELR at the moment or not.

        A partition with one replica is left out: no other broker can lead it.

        Args:
            incarnation: The id of the first log directory.

        Raises:
            StorageError: The last registration of the broker cannot be read.
        """
        entry = self._metadata.image.get(f"{REGISTRATIONS}{self._broker_id}")
        last = "" if entry is None else decode(entry, RegistrationRecord).incarnation
        is_replaced = last not in {"", incarnation}
        found: list[Departing] = []
        for topic, index, partition in self._replicated():
            reason = "other incarnation" if is_replaced else _reason(topic, partition)
            if reason is not None:
                log_end = None
                if reason == "power cut" and partition is not None:
                    log = partition.log
                    log_end = LastKnown(self._broker_id, log.epochs.latest, log.log_end_offset)
                found.append(Departing(topic, index, reason, log_end))
        return found

    def unserved(self) -> list[Departing]:
        """Return the replicas that are not served, of topics that this broker shows."""
        return [
            Departing(topic, index, "not served")
            for topic, index, partition in self._replicated()
            if partition is None
        ]

    def _replicated(self) -> Iterator[tuple[Topic, int, Partition | None]]:
        """Yield the replicas of this broker of partitions with several replicas; None for one that is not served."""
        for topic in self._topics:
            # Further partitions may be being opened.
            for index, partition in enumerate(self._local.of(topic)):
                replicas = topic.replicas[index]
                if len(replicas) > 1 and self._broker_id in replicas:
                    yield topic, index, partition

    def leave(self, departing: Iterable[Departing]) -> Change | None:
        """Return the change with which replicas leave ISR and ELR; None if none of them is in either."""
        changes = [each for each in map(self._change, departing) if each is not None]
        if not changes:
            return None
        checks = [each.state for each in changes]
        checks += dict.fromkeys(each.registration for each in changes if each.registration)
        return checks, [each.put for each in changes]

    def _change(self, departing: Departing) -> StateChange | None:
        topic, index, reason, log_end = departing
        present = self._topics.state(topic, index)
        members = {present.leader, *present.isr, *present.elr}
        others = members - {self._broker_id, NO_LEADER}
        if self._broker_id in members:
            if reason == "not served" and not others:
                return None
        elif all(each.broker != self._broker_id for each in present.last_known):
            return None
        after = without(present, self._broker_id, log_end)
        controlled = ControlledTopic(topic.topic_id, topic.replicas)
        return self._decisions.change(controlled, index, present, after)


def _reason(topic: Topic, partition: Partition | None) -> Reason | None:
    """Return why a replica may lack records; None if it has all that it had."""
    if partition is None:
        return "not served"
    log_dir = partition.log_dir
    if log_dir.is_new:
        return "new directory"
    if log_dir.unsynced is not None and log_dir.unsynced.may_have_lost(topic.topic_id):
        return "power cut"
    return None
