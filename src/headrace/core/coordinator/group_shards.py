"""The shards of groups: creating and loading them, timers, expiry of offsets, and offsets of deleted topics.

These are the operations of the group coordinator that no request of a client starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from headrace.core.coordinator.any_group import offsets
from headrace.core.coordinator.any_group.timers import operation_of
from headrace.core.coordinator.classic import rebalance
from headrace.core.coordinator.consumer.downgrade import REASON, needs_rebalance
from headrace.core.coordinator.partitioning import can_be_stored
from headrace.core.coordinator.runtime import (
    CoordinatorLog,
    Reply,
    Result,
    ShardState,
    TimerKey,
)
from headrace.core.coordinator.sharded import (
    EXPIRY,
    TOMBSTONES_PER_BATCH,
    ShardedCoordinator,
    no_response,
)
from headrace.core.coordinator.state.assignors import OWN_ASSIGNORS, ServerAssignor
from headrace.core.coordinator.state.classic_group import ClassicGroup
from headrace.core.coordinator.state.config import ConsumerTimes, GroupConfig
from headrace.core.coordinator.state.memory import GroupMemory
from headrace.core.coordinator.state.records import GroupRecord
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.topics import TopicsView
from headrace.errors import ErrorCode
from headrace.ports import Entropy, Journal

T = TypeVar("T")
_BEFORE_ACTIVE: Final = frozenset({ShardState.INITIAL, ShardState.LOADING, ShardState.REPLAYED})
LOOKED_AT_FOR_EXPIRY: Final = 20_000
"""The number of offsets that one step of the expiry check looks at: some 10 milliseconds."""
_GROUP_COST: Final = 5
"""The cost of visiting one group, in numbers of offsets that are checked."""
_TOMBSTONE_COST: Final = 6
"""The cost of writing one tombstone, in numbers of offsets that are checked."""
_PAUSE_MS: Final = 100
"""The pause between two steps of the expiry check, in milliseconds."""


class GroupShards(ShardedCoordinator[GroupShard]):
    """The groups of all partitions of `__consumer_offsets` that are loaded."""

    def __init__(
        self,
        config: GroupConfig,
        log: CoordinatorLog,
        *,
        entropy: Entropy,
        journal: Journal,
        topics: TopicsView | None = None,
        assignors: Mapping[str, ServerAssignor] = OWN_ASSIGNORS,
        times: Callable[[str], ConsumerTimes] | None = None,
    ) -> None:
        super().__init__(log, config.offsets_retention_check_interval_ms)
        self.config = config
        self._entropy = entropy
        self._journal = journal
        self._topics = topics
        self._assignors = assignors
        self._times = times
        self.memory = GroupMemory(
            config.group_max_bytes, config.groups_max_bytes, config.offsets_max_bytes
        )
        """The memory of the groups of all shards."""
        self._expiring: dict[int, Iterator[tuple[int, list[GroupRecord]]]] = {}
        """The groups that the running check for expired offsets has not visited yet, by partition."""

    def _new_shard(self, partition: int) -> GroupShard:
        shard = GroupShard(
            partition,
            self._log,
            self.config,
            timers=self._timers,
            entropy=self._entropy,
            journal=self._journal,
            topics=self._topics,
            assignors=self._assignors,
            times=self._times,
            memory=self.memory,
        )
        shard.after_load = partial(self._rebalance_loaded, shard)
        return shard

    def _run_timer(self, shard: GroupShard, timer: TimerKey, now_ms: int) -> None:
        operation = operation_of(shard, timer, now_ms)
        if operation is not None:
            shard.runtime.execute(operation, no_response, now_ms)

    def _expired(self, shard: GroupShard, now_ms: int) -> Iterable[Sequence[GroupRecord]]:
        groups = self._expiring.pop(shard.partition, None) or offsets.expired(shard, now_ms)
        found: list[Sequence[GroupRecord]] = []
        left = LOOKED_AT_FOR_EXPIRY
        for count, tombstones in groups:
            if tombstones:
                found.append(tombstones)
            left -= _GROUP_COST + count + _TOMBSTONE_COST * len(tombstones)
            if left <= 0:
                self._expiring[shard.partition] = groups
                self._timers.set(TimerKey(EXPIRY, shard.partition), now_ms + _PAUSE_MS)
                break
        return found

    def _rebalance_loaded(
        self, shard: GroupShard, group: ClassicGroup, now_ms: int
    ) -> Callable[[], Result[None]] | None:
        if needs_rebalance(group):
            reason = REASON
        elif len(group.members) > self.config.group_max_size:
            reason = "the loaded group is larger than group.max.size"
        else:
            return None
        # By name: a request may come before the operation, and replace the group or begin the rebalance.
        return partial(rebalance.rejoin, shard, group.group_id, reason, now_ms)

    # --- deleted topics ---

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being loaded, or waits for it: its committed offsets are not known yet."""
        return any(shard.runtime.state in _BEFORE_ACTIVE for shard in self._shards.values())

    def forget_offsets(
        self, topic: str, now_ms: int, is_back: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[Reply[None]]]]:
        """Delete the offsets that groups have committed for a deleted topic, about a thousand in each step.

        Args:
            topic: The name of the topic.
            now_ms: When the topic was deleted.
            is_back: Returns whether a topic of that name exists again. Offsets committed after `now_ms` then stay.

        Yields:
            The number of deleted offsets, and replies that are ready when the deletion is durable.
        """
        for shard in list(self._shards.values()):
            if shard.runtime.state is not ShardState.ACTIVE:
                continue  # `forget_deleted_topics` follows when it is loaded
            records: list[GroupRecord] = []
            for group_id in shard.offsets.groups_of(topic):
                until_ms = now_ms if is_back() else None
                records += offsets.of_deleted_topic(shard, group_id, topic, until_ms)
                if len(records) >= TOMBSTONES_PER_BATCH:
                    yield len(records), self._write(shard, records, now_ms)
                    records = []
            if records:
                yield len(records), self._write(shard, records, now_ms)

    def forget_deleted_topics(
        self, partition: int, exists: Callable[[str], bool], now_ms: Callable[[], int]
    ) -> Iterator[int]:
        """Delete the offsets of topics that do not exist, in a partition that was just loaded.

        `forget_offsets` misses some: a crash can undo a deletion, and a partition that is not loaded deletes nothing.

        Args:
            partition: The partition. Nothing happens if it has been unloaded.
            exists: Returns whether a topic exists.
            now_ms: Returns the time, which passes between two steps.

        Yields:
            The number of offsets that a step has deleted.
        """
        shard = self._shards[partition]

        def keeps(topic: str) -> bool:
            return shard.runtime.state is not ShardState.ACTIVE or exists(topic)

        for topic in sorted(topic for topic in shard.offsets.topics() if not exists(topic)):
            if keeps(topic):
                continue  # a request has created the topic since
            records: list[GroupRecord] = []
            for group_id in shard.offsets.groups_of(topic):
                records += offsets.of_deleted_topic(shard, group_id, topic, None)
                if len(records) >= TOMBSTONES_PER_BATCH:
                    self._write(shard, records, now_ms())
                    yield len(records)
                    records = []
                    if keeps(topic):
                        break
            if records:
                self._write(shard, records, now_ms())
                yield len(records)

    # --- routing ---

    def _run(
        self,
        group_id: str,
        operation: Callable[[GroupShard], Result[T]],
        failed: Callable[[ErrorCode], T],
        now_ms: int,
    ) -> Reply[T]:
        if not can_be_stored(group_id):
            return failed(ErrorCode.INVALID_GROUP_ID)
        return super()._run(group_id, operation, failed, now_ms)
