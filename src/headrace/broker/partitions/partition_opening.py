"""Opens the partitions of stored topics in steps, and retries the partitions whose files cannot be opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topic import Topic
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.partition_loader import OpeningSpec, PartitionLoader
from headrace.broker.waiting.steps import PARTITION_OPENING_COST, Work
from headrace.core.cluster.partition_states import PartitionStates, state_key
from headrace.core.cluster.records import PartitionState
from headrace.core.replica.role import Leadership
from headrace.errors import ApiError
from headrace.types import TopicPartition

_RETRY_INTERVAL_MS: Final = 500


class PartitionOpening:
    """Opens the partitions of stored topics."""

    __slots__ = (
        "_loader",
        "_local",
        "_retry_at_ms",
        "_states",
        "_unopened",
        "ahead",
        "next_deadline_ms",
        "pending",
    )

    def __init__(
        self, loader: PartitionLoader, local: LocalPartitions, states: PartitionStates
    ) -> None:
        self._loader = loader
        self._local = local
        self._states = states
        self.ahead: dict[str, PartitionState] = {}
        """The states to store of partitions whose logs have a higher leader epoch than the metadata, by key."""
        self._unopened: dict[tuple[Topic, int], None] = {}
        """The partitions whose files could not be opened."""
        self.pending = 0
        """The number of partitions that are stored but not opened yet."""
        self._retry_at_ms: int | None = None
        """The time of the next retry; None if there is nothing to retry."""
        self.next_deadline_ms: int | None = None
        """The time of the next retry, or 0 after `wake`; None if there is nothing to do."""

    def wake(self) -> None:
        """Ask for a tick at once: topics have changed in the image."""
        self.next_deadline_ms = 0

    def rest(self) -> None:
        """Undo `wake`: the changes of topics are applied."""
        self.next_deadline_ms = self._retry_at_ms

    def retry_later(self, now_ms: int) -> None:
        """Ask for a tick in half a second."""
        self._retry_at_ms = self.next_deadline_ms = now_ms + _RETRY_INTERVAL_MS

    def is_due(self, now_ms: int) -> bool:
        """Return whether the time of `retry_later` has come."""
        return self._retry_at_ms is not None and now_ms >= self._retry_at_ms

    def specs(self, topic: Topic) -> Iterator[OpeningSpec | None]:
        """Yield how to open each partition that a topic does not show yet; None without a replica on this broker."""
        for index in range(len(self._local.of(topic)), topic.partitions_count):
            yield opening_spec(topic, index) if self._local.has_replica(topic, index) else None

    def open_missing(
        self, topic: Topic, now_ms: int, specs: Iterable[OpeningSpec | None] | None = None
    ) -> Work[None]:
        """Open the partitions that a topic does not show yet, in steps, and then show all of them at once.

        Args:
            topic: The topic.
            now_ms: The time.
            specs: What `specs` has yielded for the topic; None to yield it meanwhile.
        """
        config, changes = topic.config, self._states.changes
        missing = range(len(self._local.of(topic)), topic.partitions_count)
        opened: list[Partition | None] = []
        self.pending += len(missing)
        try:
            for index, spec in zip(missing, specs or self.specs(topic), strict=True):
                opened.append(None if spec is None else self._open(topic, index, spec, now_ms))
                self.pending -= 1
                yield PARTITION_OPENING_COST
        finally:
            self.pending -= len(missing) - len(opened)
        if topic.config is not config:
            self._loader.configure(opened, topic.config)
        self._local.show(topic, opened)
        if self._states.changes != changes:
            self._apply_states(topic, missing, opened)

    def _apply_states(
        self, topic: Topic, indexes: Iterable[int], opened: Iterable[Partition | None]
    ) -> None:
        """Give partitions the roles that follow from the present states, which have changed since they were opened."""
        for index, partition in zip(indexes, opened, strict=True):
            if partition is not None:
                state = self._states.get(topic.topic_id, index, topic.replicas[index])
                self._loader.apply(partition, leadership(state, topic.replicas[index]))

    def _open(self, topic: Topic, index: int, spec: OpeningSpec, now_ms: int) -> Partition | None:
        self._unopened.pop((topic, index), None)
        state = self._states.get(topic.topic_id, index, topic.replicas[index])
        try:
            partition = self._loader.add(
                spec,
                leadership(state, topic.replicas[index]),
                is_internal=topic.is_internal,
                now_ms=now_ms,
            )
        except (ApiError, OSError):
            self._unopened[topic, index] = None
            self.retry_later(now_ms)
            return None
        if partition is not None and partition.leader_epoch > state.leader_epoch:
            self.ahead[state_key(topic.topic_id, index)] = replace(
                state, leader_epoch=partition.leader_epoch
            )
        return partition

    def retry(
        self,
        now_ms: int,
        *,
        exists: Callable[[Topic], bool],
        is_changing: Callable[[str], bool],
    ) -> list[Partition]:
        """Try again to open the partitions that could not be opened, and return those that are open now.

        Args:
            now_ms: The time.
            exists: Returns whether a topic still exists.
            is_changing: Returns whether a request is changing the topic of a name.
        """
        if not self.is_due(now_ms):
            return []
        self._retry_at_ms = self.next_deadline_ms = None
        opened: list[Partition] = []
        for topic, index in list(self._unopened):
            if is_changing(topic.name):  # its other partitions are being opened
                self.retry_later(now_ms)
            elif not exists(topic):
                del self._unopened[topic, index]
            else:
                partition = self.reopen(topic, index, now_ms)
                if partition is not None:
                    opened.append(partition)
        return opened

    def reopen(self, topic: Topic, index: int, now_ms: int) -> Partition | None:
        """Open a partition that a topic shows but that is offline; None if it cannot be opened, or not now."""
        partition = self._open(topic, index, opening_spec(topic, index), now_ms)
        if partition is not None:
            self._local.reopened(topic, index, partition)
        return partition


def opening_spec(topic: Topic, index: int) -> OpeningSpec:
    """Return what the loader needs to open a replica of a partition."""
    return OpeningSpec(
        TopicPartition(topic.name, index),
        topic.topic_id,
        topic.config,
        topic.directory_ids[index],
        len(topic.replicas[index]) > 1,
    )


@lru_cache(256)
def leadership(state: PartitionState, replicas: tuple[int, ...]) -> Leadership:
    """Return what a state says about the replicas of a partition. Partitions with equal states share the object."""
    return Leadership(
        state.leader,
        state.leader_epoch,
        frozenset(state.isr),
        state.registration,
        frozenset(state.elr),
        replicas,
        state.unclean_epoch,
    )
