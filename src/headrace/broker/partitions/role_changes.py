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
from headrace.broker.replication.replicas import Replicas
from headrace.broker.waiting.steps import ENTRY_COST, Steps, Work
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import STATES

_SCANNED: Final = 30
"""The number of partitions whose leader is compared in the time of one entry."""


class RoleChanges:
    """Follows the states of partitions."""

    __slots__ = (
        "_brokers",
        "_is_following",
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
        steps: Steps,
    ) -> None:
        """Follow the states from now on.

        Args:
            states: The states of all partitions.
            topics: Returns the topics that this broker shows.
            local: The partitions of each topic on this broker.
            replicas: The replicas whose roles change.
            steps: Runs the changes.
        """
        self._states = states
        self._topics = topics
        self._local = local
        self._replicas = replicas
        self._steps = steps
        self._keys: set[str] = set()
        """The keys of changed states."""
        self._brokers: set[int] = set()
        """The brokers that have registered again."""
        self._is_following = False
        states.on_change = self._changed

    def _changed(self, keys: Iterable[str], brokers: Iterable[int]) -> None:
        self._keys.update(keys)
        self._brokers.update(brokers)
        if not self._is_following:
            self._is_following = True
            self._steps.run(self._follow(), finishes=True, postponed=True)

    def _follow(self) -> Work[None]:
        while self._keys or self._brokers:
            keys, self._keys = self._keys, set()
            brokers, self._brokers = self._brokers, set()
            changed: dict[str, list[int]] = {}
            for key in keys:
                topic_id, _, index = key.removeprefix(STATES).partition("/")
                if index.isdecimal():
                    changed.setdefault(topic_id, []).append(int(index))
            for topic in list(self._topics()):
                yield from self._apply(topic, changed.get(topic.topic_id.hex(), ()), brokers)
        self._is_following = False

    def _apply(self, topic: Topic, indexes: Iterable[int], brokers: set[int]) -> Work[None]:
        partitions = self._local.of(topic)
        yield ENTRY_COST
        if brokers:
            led = [i for i, each in enumerate(partitions) if each and each.newest.leader in brokers]
            indexes = {*indexes, *led}
            yield len(partitions) * ENTRY_COST // _SCANNED
        for index in sorted(indexes):
            # The topic may have been deleted since the last step.
            partition = self._local.find(topic.name, index)
            if partition is not None and partitions[index] is partition:
                state = self._states.get(topic.topic_id, index, topic.replicas[index])
                self._replicas.apply(partition, leadership(state))
                yield ENTRY_COST
