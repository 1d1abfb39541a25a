"""Gives the replicas of this broker the roles that follow from changed states and registrations.

The image reports which entries have changed. The roles change afterwards, in steps: a broker that leads thousands of
partitions may register again. Each replica gets its role from the newest state, so states in between may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.partition_opening import leadership
from headrace.broker.partitions.topic import Topic
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.broker.session import Session
from headrace.broker.waiting.steps import ENTRY_COST, Steps, Work, finished, logged
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import STATES
from headrace.ports import Journal

_SCANNED: Final = 30
"""The number of partitions whose leader is compared in the time of one entry."""


class RoleChanges:
    """Follows the states of partitions."""

    __slots__ = (
        "_all_changed",
        "_brokers",
        "_is_following",
        "_journal",
        "_keys",
        "_local",
        "_replicas",
        "_states",
        "_steps",
        "_topics",
    )

    def __init__(
        self,
        states: PartitionStates,
        topics: Callable[[], Iterable[Topic]],
        local: LocalPartitions,
        replicas: Replicas,
        *,
        steps: Steps,
        journal: Journal,
    ) -> None:
        """Follow the states from now on.

        Args:
            states: The states of all partitions.
            topics: Returns the topics that this broker shows.
            local: The partitions of each topic on this broker.
            replicas: The replicas whose roles change.
            steps: Runs the changes.
            journal: Receives the log events.
        """
        self._states = states
        self._topics = topics
        self._local = local
        self._replicas = replicas
        self._steps = steps
        self._journal = journal
        self._keys: set[str] = set()
        """The keys of changed states."""
        self._brokers: set[int] = set()
        """The brokers that have registered again."""
        self._all_changed = False
        """Whether every replica has to get its role again."""
        self._is_following = False
        states.listeners.append(self._changed)

    def registration_changed(self) -> None:
        """Give every replica the role that follows from the present registration of this broker, in steps."""
        self._states.changes += 1  # for the partitions that are being opened
        self._all_changed = True
        self._follow_later()

    def finish(self) -> None:
        """Give all replicas the roles that follow from changes up to now, without steps: the broker starts."""
        finished(self._follow_changes())

    def _changed(self, keys: Iterable[str], brokers: Iterable[int]) -> None:
        self._keys.update(keys)
        self._brokers.update(brokers)
        self._follow_later()

    def _follow_later(self) -> None:
        if not self._is_following:
            self._is_following = True
            work = logged(self._follow(), "change of roles", self._journal)
            self._steps.run(work, Session(is_local=True), finishes=True, postponed=True)

    def _follow(self) -> Work[None]:
        try:
            yield from self._follow_changes()
        finally:
            self._is_following = False

    def _follow_changes(self) -> Work[None]:
        while self._keys or self._brokers or self._all_changed:
            keys, self._keys = self._keys, set()
            brokers, self._brokers = self._brokers, set()
            all_changed, self._all_changed = self._all_changed, False
            changed: dict[str, list[int]] = {}
            for key in keys:
                topic_id, _, index = key.removeprefix(STATES).partition("/")
                if index.isdecimal():
                    changed.setdefault(topic_id, []).append(int(index))
            for topic in list(self._topics()):
                indexes: Iterable[int] = changed.get(topic.topic_id.hex(), ())
                if all_changed:
                    indexes = range(topic.partitions_count)
                yield from self._apply(topic, indexes, brokers)

    def _apply(self, topic: Topic, indexes: Iterable[int], brokers: set[int]) -> Work[None]:
        partitions = self._local.of(topic)
        yield ENTRY_COST
        if brokers:
            led = [i for i, each in enumerate(partitions) if each and each.newest.leader in brokers]
            indexes = {*indexes, *led}
            yield len(partitions) * ENTRY_COST // _SCANNED
        for index in sorted(indexes):
            # Since the last step the topic may have been deleted, or got partitions, which have their roles already.
            partition = self._local.find(topic.name, index)
            if index < len(partitions) and partition is not None and partitions[index] is partition:
                self._apply_state(topic, partition)
                yield ENTRY_COST

    def _apply_state(self, topic: Topic, partition: Partition) -> None:
        index = partition.topic_partition.partition
        try:
            replicas = topic.replicas[index]
            state = self._states.get(topic.topic_id, index, replicas)
            self._replicas.apply(partition, leadership(state, replicas))
        except Exception as error:  # noqa: BLE001 - the other partitions get their roles all the same
            self._journal.error(
                "role_not_changed", partition=str(partition.topic_partition), error=repr(error)
            )
