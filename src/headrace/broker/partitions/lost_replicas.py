"""Places lost replicas anew: a replica whose log directory the broker no longer has is fetched from the leader.

1. The broker starts. The metadata has the log directory of a replica, but the broker has no such directory any more:
   it was replaced by an empty one, or removed from the configuration. The replica is not served.
2. The replica leaves the ISR and the ELR, see `cluster/unclean_start.py`. It stays if no other replica is in either.
3. When the image has the new state, the broker stores another directory for the replica. An empty log there follows
   the leader.

After a crash between two steps, the next start continues. A replica whose directory is missing or has failed keeps its
place: the disk may come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.broker.context import LatestTime
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topic_store import TopicStore
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.replicas import Replicas
from headrace.broker.waiting.purgatory import Alarm, Purgatory
from headrace.broker.waiting.steps import PARTITION_OPENING_COST, Work
from headrace.core.replica.role import NO_REGISTRATION
from headrace.errors import ApiError
from headrace.ports import Journal
from headrace.types import TopicPartition

CHECK_INTERVAL_MS: Final = 2_000
"""The time between two checks while there are lost replicas, in milliseconds."""


class LostReplicas:
    """The replicas of this broker whose log directories it no longer has."""

    __slots__ = (
        "_alarm",
        "_dirs",
        "_journal",
        "_purgatory",
        "_replicas",
        "_reported",
        "_store",
        "_time",
        "_topics",
    )

    def __init__(
        self,
        topics: Topics,
        replicas: Replicas,
        metadata: MetadataWriter,
        *,
        purgatory: Purgatory,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Look for lost replicas when the broker is open, and from then on while there are any."""
        self._topics = topics
        self._replicas = replicas
        self._dirs = replicas.store.dirs
        self._store = TopicStore(metadata, replicas.broker_id)
        self._purgatory = purgatory
        self._time = time
        self._journal = journal
        self._reported: set[TopicPartition] = set()
        """The lost replicas that stay, and that the journal has."""
        self._alarm = Alarm(self._check)
        purgatory.add(self._alarm, 0)

    def _check(self) -> None:
        lost = [(topic, found) for topic in self._topics if (found := self._lost(topic))]
        if not lost:
            return
        self._purgatory.add(self._alarm, self._time.now_ms + CHECK_INTERVAL_MS)
        if self._replicas.registration == NO_REGISTRATION:
            return
        for topic, found in lost:
            placeable = [index for index in found if self._may_begin_anew(topic, index)]
            if placeable and topic.name not in self._topics.changing:
                self._topics.change(topic.name, self._place(topic, placeable))

    def _lost(self, topic: Topic) -> list[int]:
        """Return the numbers of the partitions with several replicas of which this broker has lost its own."""
        own, is_removed = self._replicas.broker_id, self._dirs.is_removed
        return [
            index
            for index, directory_id in enumerate(topic.directory_ids)
            if directory_id
            and own in topic.replicas[index]
            and len(topic.replicas[index]) > 1
            and is_removed(directory_id)
        ]

    def _may_begin_anew(self, topic: Topic, index: int) -> bool:
        """Return whether a replica is not in sync any more, and another one is. A replica that stays is logged once."""
        state, own = self._topics.state(topic, index), self._replicas.broker_id
        members = {*state.isr, *state.elr}
        if members and own not in members and own != state.leader:
            return True
        name = TopicPartition(topic.name, index)
        if name not in self._reported and not members - {own}:
            self._reported.add(name)
            directory = self._dirs.name_of(topic.directory_ids[index])
            self._journal.error("lost_replica_stays", partition=str(name), directory=directory)
        return False

    def _place(self, topic: Topic, indexes: Sequence[int]) -> Work[None]:
        """Store other log directories of lost replicas, then open empty logs there."""
        wanted = frozenset(indexes)
        here = [index in wanted for index in range(topic.partitions_count)]
        placed = self._dirs.place_replicas(
            here, is_internal=topic.is_internal, storage=topic.config.headrace_storage
        )
        chosen = {index: placed[index] for index in indexes}
        try:
            yield from self._store.place_anew(topic, chosen)
        except ApiError as error:
            self._journal.warning("topic_not_placed", topic=topic.name, error=error.message)
            return
        for index, directory_id in chosen.items():
            topic.directory_ids[index] = directory_id
            self._topics.reopen(topic, index)
            yield PARTITION_OPENING_COST
        self._journal.warning("lost_replicas_placed", topic=topic.name, partitions=len(chosen))
