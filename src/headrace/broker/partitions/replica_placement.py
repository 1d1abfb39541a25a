"""The number of new partitions and the brokers of their replicas: chosen by the broker, or by a request and checked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from headrace.broker.configs.broker_settings import BrokerSettings
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.core.cluster.membership import Membership
from headrace.core.cluster.new_partitions import (
    check_assignments,
    check_replication_factor,
    first_states,
)
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.placement import placements, with_away
from headrace.core.cluster.records import PartitionState

BROKER_DEFAULT: Final = -1
"""The number in a request that stands for the broker's default."""
_CHOICE_COST: Final = 3 * ENTRY_COST
"""The cost of choosing the brokers of one partition: some thirty microseconds."""


class NewPartitions(NamedTuple):
    """Partitions to create.

    Attributes:
        partitions_count: The number of partitions.
        replication_factor: The number of replicas of each partition.
        assignments: The brokers of each partition; empty if the broker chooses.
    """

    partitions_count: int
    replication_factor: int
    assignments: Sequence[tuple[int, ...]] = ()


class ReplicaPlacement:
    """Places the replicas of new partitions on the brokers of the cluster."""

    __slots__ = ("_membership", "_settings", "_states")

    def __init__(
        self, settings: BrokerSettings, membership: Membership, states: PartitionStates
    ) -> None:
        self._settings = settings
        self._membership = membership
        self._states = states

    def wanted(self, count: int, replication_factor: int) -> NewPartitions:
        """Return the partitions that a request wants, with the broker's defaults.

        Args:
            count: The number of partitions; -1 for `num.partitions`.
            replication_factor: The number of replicas; -1 for `default.replication.factor`.

        Raises:
            ApiError: INVALID_REPLICATION_FACTOR: there are not enough brokers.
        """
        config = self._settings.config
        if replication_factor == BROKER_DEFAULT:
            replication_factor = config.default_replication_factor
        self._check(replication_factor)
        if count == BROKER_DEFAULT:
            count = config.num_partitions
        return NewPartitions(count, replication_factor)

    def _check(self, replication_factor: int) -> None:
        running = self._membership.running
        registered = len({*self._states.broker_epochs, *running})
        check_replication_factor(replication_factor, registered=registered, running=len(running))

    def reduced(self, count: int, replication_factor: int) -> NewPartitions:
        """Return partitions with fewer replicas than configured if there are fewer live brokers, but at least one."""
        running = len(self._membership.running)
        return NewPartitions(count, max(1, min(replication_factor, running)))

    def assigned(
        self, assignments: Sequence[Sequence[int]], replication_factor: int | None = None
    ) -> NewPartitions:
        """Return the partitions whose brokers a request has chosen.

        Args:
            assignments: The brokers of each partition.
            replication_factor: The number of replicas of each partition; None for that of the first assignment.

        Raises:
            ApiError: INVALID_REPLICA_ASSIGNMENT.
        """
        check_assignments(
            assignments,
            registered=self._states.broker_epochs,
            running=self._membership.running,
            replication_factor=replication_factor,
        )
        chosen = [tuple(replicas) for replicas in assignments]
        return NewPartitions(len(chosen), len(chosen[0]), chosen)

    def share(self, new: NewPartitions, broker_id: int) -> int:
        """Return how many new replicas a broker gets: those that are assigned, or its share, rounded up."""
        if new.assignments:
            return sum(broker_id in replicas for replicas in new.assignments)
        running = max(1, len(self._membership.running))
        return -(-new.partitions_count * min(new.replication_factor, running) // running)

    def place(
        self, topic_id: bytes, new: NewPartitions, present: Sequence[tuple[int, ...]] = ()
    ) -> Work[list[tuple[int, ...]]]:
        """Return the brokers of each new partition, the preferred leader first.

        Args:
            topic_id: The id of the topic. Topics with different ids begin with different brokers.
            new: The new partitions.
            present: The brokers of the partitions that the topic has.

        Raises:
            ApiError: INVALID_REPLICATION_FACTOR: there are not enough brokers.
        """
        if new.assignments:
            return list(new.assignments)
        running = self._membership.running
        self._check(new.replication_factor)
        if new.replication_factor == len(running) == 1:
            return [tuple(running)] * new.partitions_count
        racks = {number: each.rack for number, each in running.items()}
        start = int.from_bytes(topic_id)
        live_replicas = min(new.replication_factor, len(running))
        chosen = placements(racks, live_replicas, start=start, present=present)
        if live_replicas < new.replication_factor:
            away = sorted(self._states.broker_epochs.keys() - running.keys())
            chosen = with_away(chosen, away, new.replication_factor, start=len(present))
        placed: list[tuple[int, ...]] = []
        for replicas in islice(chosen, new.partitions_count):
            placed.append(replicas)
            yield _CHOICE_COST
        return placed

    def states(
        self, topic_id: bytes, replicas: Sequence[tuple[int, ...]], first: int, limit: int
    ) -> dict[str, PartitionState]:
        """Return the states to store with new partitions, by key, if not all of their replicas are live.

        Args:
            topic_id: The id of the topic.
            replicas: The brokers of each partition, present and new.
            first: The number of the first new partition.
            limit: The number of states that the commit can store. The controller elects the leaders of the other
                partitions, and their leaders remove the other brokers from the ISR.
        """
        states = first_states(topic_id, replicas, self._membership, first)
        return dict(islice(states, limit))
