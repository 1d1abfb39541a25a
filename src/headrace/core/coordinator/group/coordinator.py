"""The group coordinator: finds the shard of a group, checks what is the same for all, and runs the operation there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from headrace.core.coordinator.consumer.assignors import OWN_ASSIGNORS, Assignor
from headrace.core.coordinator.consumer.describe import describe_consumer_group
from headrace.core.coordinator.consumer.downgrade import REASON, needs_rebalance
from headrace.core.coordinator.consumer.heartbeat import heartbeat as consumer_heartbeat
from headrace.core.coordinator.consumer.topics import TopicsView
from headrace.core.coordinator.consumer.turn import Visible
from headrace.core.coordinator.group import (
    delete,
    describe,
    offsets,
    rebalance,
    transactional,
)
from headrace.core.coordinator.group.classic import Group, Origin
from headrace.core.coordinator.group.config import ConsumerTimes, GroupConfig
from headrace.core.coordinator.group.kinds import kind_of
from headrace.core.coordinator.group.records import GroupRecord
from headrace.core.coordinator.group.shard import GroupShard
from headrace.core.coordinator.group.timers import operation_of
from headrace.core.coordinator.partitioning import can_be_stored, partition_for_key
from headrace.core.coordinator.runtime import (
    PARKED,
    CoordinatorLog,
    Reply,
    Result,
    ShardState,
    Timer,
    Timers,
    gather,
)
from headrace.core.deadlines import Deadlines
from headrace.core.deferred import Deferred
from headrace.core.log.control_batch import Marker
from headrace.errors import ErrorCode
from headrace.ports import Entropy, Journal
from headrace.protocol.messages import consumer_group_describe
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.messages.delete_groups import DeletableGroupResult
from headrace.protocol.messages.describe_groups import DescribedGroup
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity
from headrace.protocol.messages.list_groups import ListedGroup
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

T = TypeVar("T")

EXPIRY = "expiry"
TOMBSTONES_PER_BATCH = 1_000


def is_valid_group_id(group_id: str) -> bool:
    """Whether a group that has members may be called this."""
    return group_id != "" and can_be_stored(group_id)


class GroupCoordinator:
    """Coordinates the groups whose partitions of `__consumer_offsets` it has loaded.

    All methods are synchronous. A response comes back as it is when nothing has to be waited for, else as a Deferred.
    Errors are in the responses; only `load` raises.
    """

    def __init__(
        self,
        config: GroupConfig,
        log: CoordinatorLog,
        *,
        entropy: Entropy,
        journal: Journal,
        topics: TopicsView | None = None,
        assignors: Mapping[str, Assignor] = OWN_ASSIGNORS,
        times: Callable[[str], ConsumerTimes] | None = None,
    ) -> None:
        self.config = config
        self._log = log
        self._entropy = entropy
        self._journal = journal
        self._topics = topics
        self._assignors = assignors
        self._times = times
        self._timers: Timers = Deadlines()
        self._shards: dict[int, GroupShard] = {}

    # --- partitions ---

    def load(self, partition: int, now_ms: int = 0) -> None:
        """Replay a partition and begin to coordinate its groups.

        Raises:
            StorageError: A record in it cannot be read.
        """
        shard = self._shards.get(partition)
        if shard is None:
            shard = self._shards[partition] = GroupShard(
                partition,
                self._log,
                self.config,
                timers=self._timers,
                entropy=self._entropy,
                journal=self._journal,
                topics=self._topics,
                assignors=self._assignors,
                times=self._times,
            )
            shard.after_load = partial(self._rebalance_loaded, shard)
        # Every partition has its own share of the interval: looking through all of them at once would take long.
        share = (partition + 1) / max(self._log.partitions_count, 1)
        interval_ms = self.config.offsets_retention_check_interval_ms
        self._timers.set(Timer(EXPIRY, partition), now_ms + int(interval_ms * share))
        shard.runtime.load(now_ms)

    def unload(self, partition: int) -> None:
        """Stop coordinating a partition's groups: whoever waits is told NOT_COORDINATOR, the state is dropped."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.runtime.unload()

    def high_watermark_advanced(self, partition: int, high_watermark: int) -> None:
        """Let the responses go that waited for the high watermark. May be called during an append."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.runtime.high_watermark_advanced(high_watermark)

    def partition_for(self, group_id: str) -> int | None:
        """Return the partition that holds a group, or None while `__consumer_offsets` does not exist."""
        count = self._log.partitions_count
        return partition_for_key(group_id, count) if count else None

    # --- time ---

    @property
    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do next, or None."""
        return self._timers.next_ms

    def expire(self, now_ms: int) -> None:
        """Run what is due. Each timer is an operation of its own, like a request."""
        for timer in self._timers.expire(now_ms):
            # Unless what an earlier one of them did has set this one anew.
            shard = self._shards.get(timer.partition)
            if shard is not None and timer not in self._timers:
                self._run_timer(shard, timer, now_ms)

    def _run_timer(self, shard: GroupShard, timer: Timer, now_ms: int) -> None:
        if timer.kind == PARKED:
            shard.runtime.expire_parked(now_ms)
            return
        if timer.kind == EXPIRY:
            self._remove_expired(shard, now_ms)
            self._timers.set(timer, now_ms + self.config.offsets_retention_check_interval_ms)
            return
        operation = operation_of(shard, timer, now_ms)
        if operation is not None:
            shard.runtime.execute(operation, _no_response, now_ms)

    def _rebalance_loaded(
        self, shard: GroupShard, group: Group, now_ms: int
    ) -> Callable[[], Result[None]] | None:
        if needs_rebalance(group):
            reason = REASON
        elif len(group.members) > self.config.group_max_size:
            reason = "the loaded group is larger than group.max.size"
        else:
            return None
        return lambda: rebalance.prepare(shard, group, reason, now_ms)

    # --- membership ---

    def join_group(
        self, origin: Origin, request: JoinGroupRequest, now_ms: int
    ) -> Reply[JoinGroupResponse]:
        """Handle JoinGroup."""

        def failed(error: ErrorCode) -> JoinGroupResponse:
            return JoinGroupResponse(error_code=error, member_id=request.member_id)

        if not is_valid_group_id(request.group_id):
            return failed(ErrorCode.INVALID_GROUP_ID)
        names = [protocol.name for protocol in request.protocols]
        if not all(map(can_be_stored, [*names, request.protocol_type, request.group_instance_id])):
            return failed(ErrorCode.INVALID_REQUEST)
        low, high = (
            self.config.group_min_session_timeout_ms,
            self.config.group_max_session_timeout_ms,
        )
        if not low <= request.session_timeout_ms <= high:
            return failed(ErrorCode.INVALID_SESSION_TIMEOUT)
        return self._run(
            request.group_id,
            lambda shard: kind_of(shard, request.group_id).join(shard, origin, request, now_ms),
            failed,
            now_ms,
        )

    def sync_group(self, request: SyncGroupRequest, now_ms: int) -> Reply[SyncGroupResponse]:
        """Handle SyncGroup."""

        def failed(error: ErrorCode) -> SyncGroupResponse:
            return SyncGroupResponse(error_code=error)

        if not is_valid_group_id(request.group_id):
            return failed(ErrorCode.INVALID_GROUP_ID)
        return self._run(
            request.group_id,
            lambda shard: kind_of(shard, request.group_id).sync(shard, request, now_ms),
            failed,
            now_ms,
        )

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Reply[HeartbeatResponse]:
        """Handle Heartbeat. While its group is loading a member is told that all is well: clients know no better."""

        def failed(error: ErrorCode) -> HeartbeatResponse:
            loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if loading else error)

        if not is_valid_group_id(request.group_id):
            return failed(ErrorCode.INVALID_GROUP_ID)
        return self._run(
            request.group_id,
            lambda shard: kind_of(shard, request.group_id).heartbeat(shard, request, now_ms),
            failed,
            now_ms,
        )

    def leave_group(
        self, group_id: str, leaving: list[MemberIdentity], now_ms: int
    ) -> Reply[LeaveGroupResponse]:
        """Handle LeaveGroup for any number of members."""

        def failed(error: ErrorCode) -> LeaveGroupResponse:
            return LeaveGroupResponse(error_code=error)

        if not is_valid_group_id(group_id):
            return failed(ErrorCode.INVALID_GROUP_ID)
        return self._run(
            group_id,
            lambda shard: kind_of(shard, group_id).leave(shard, group_id, leaving, now_ms),
            failed,
            now_ms,
        )

    def consumer_group_heartbeat(
        self,
        origin: Origin,
        request: ConsumerGroupHeartbeatRequest,
        visible: Visible,
        now_ms: int,
    ) -> Reply[ConsumerGroupHeartbeatResponse]:
        """Handle ConsumerGroupHeartbeat; `visible` says which topics the client may see."""
        return self._run(
            request.group_id,
            lambda shard: consumer_heartbeat(shard, origin, request, visible, now_ms),
            lambda error: ConsumerGroupHeartbeatResponse(error_code=error),
            now_ms,
        )

    def rebalance(self, group_id: str, reason: str, now_ms: int) -> None:
        """Have the members of a group join again, if it has any: something has changed that they do not see."""
        self._run(
            group_id,
            lambda shard: rebalance.rejoin(shard, group_id, reason, now_ms),
            _no_response,
            now_ms,
        )

    def exists(self, group_id: str) -> bool:
        """Whether there is a group of this name: members, committed offsets, or a former generation."""
        shard = self._shard_of(group_id)
        return shard is not None and (group_id in shard.groups or group_id in shard.consumers)

    def supports(self, group_id: str, protocol_name: str) -> bool:
        """Whether all members that a group may have support a protocol (an assignor)."""
        group = self._find(group_id)
        members = () if group is None else group.members.values()
        return all(any(p.name == protocol_name for p in member.protocols) for member in members)

    def _find(self, group_id: str) -> Group | None:
        shard = self._shard_of(group_id)
        return None if shard is None else shard.groups.get(group_id)

    def _shard_of(self, group_id: str) -> GroupShard | None:
        partition = self.partition_for(group_id)
        return None if partition is None else self._shards.get(partition)

    # --- offsets ---

    def commit_offsets(
        self,
        request: OffsetCommitRequest,
        now_ms: int,
        *,
        version: int = 9,
    ) -> Reply[OffsetCommitResponse]:
        """Handle OffsetCommit. The empty group id is allowed, as in Kafka.

        Args:
            request: The request.
            now_ms: The time.
            version: Of the request.
        """

        def failed(error: ErrorCode) -> OffsetCommitResponse:
            return offsets.commit_failed(request, error)

        return self._run(
            request.group_id,
            lambda shard: offsets.commit_offsets(shard, request, now_ms, version),
            failed,
            now_ms,
        )

    def commit_transactional_offsets(
        self, request: TxnOffsetCommitRequest, now_ms: int
    ) -> Reply[TxnOffsetCommitResponse]:
        """Handle TxnOffsetCommit: offsets that count once the transaction is committed."""
        return self._run(
            request.group_id,
            lambda shard: transactional.commit_offsets(shard, request, now_ms),
            lambda error: transactional.commit_failed(request, error),
            now_ms,
        )

    def end_transaction(self, partition: int, marker: Marker, now_ms: int) -> Reply[ErrorCode]:
        """Write a marker into a partition: the offsets that its producer has pending there count, or are forgotten."""
        shard = self._shards.get(partition)
        if shard is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return shard.runtime.execute(
            lambda: Result(ErrorCode.NONE, [marker]), lambda error: error, now_ms
        )

    def fetch_offsets(
        self,
        groups: Sequence[OffsetFetchRequestGroup],
        now_ms: int,
        *,
        require_stable: bool = False,
    ) -> Reply[list[OffsetFetchResponseGroup]]:
        """Handle OffsetFetch for any number of groups. What it shows can not be lost any more."""
        return gather(
            [self._fetch_group(group, now_ms, require_stable=require_stable) for group in groups]
        )

    def _fetch_group(
        self, request: OffsetFetchRequestGroup, now_ms: int, *, require_stable: bool
    ) -> Reply[OffsetFetchResponseGroup]:
        def failed(error: ErrorCode) -> OffsetFetchResponseGroup:
            if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                # Consumers before 3.9 take this code for fatal in this place.
                error = ErrorCode.NOT_COORDINATOR
            return OffsetFetchResponseGroup(group_id=request.group_id, error_code=error)

        return self._run(
            request.group_id,
            lambda shard: offsets.fetch_offsets(shard, request, require_stable=require_stable),
            failed,
            now_ms,
        )

    def delete_offsets(
        self, request: OffsetDeleteRequest, now_ms: int
    ) -> Reply[OffsetDeleteResponse]:
        """Handle OffsetDelete."""
        return self._run(
            request.group_id,
            lambda shard: delete.delete_offsets(shard, request),
            lambda error: OffsetDeleteResponse(error_code=error),
            now_ms,
        )

    def delete_groups(
        self, group_ids: Sequence[str], now_ms: int
    ) -> Reply[list[DeletableGroupResult]]:
        """Handle DeleteGroups. The empty group id is allowed, as in Kafka."""
        return gather([self._delete_group(group_id, now_ms) for group_id in group_ids])

    def _delete_group(self, group_id: str, now_ms: int) -> Reply[DeletableGroupResult]:
        return self._run(
            group_id,
            lambda shard: delete.delete_group(shard, group_id),
            lambda error: DeletableGroupResult(group_id=group_id, error_code=error),
            now_ms,
        )

    def topics_deleted(self, topics: Iterable[str], now_ms: int) -> None:
        """Forget the offsets that groups have committed for topics that are gone."""
        names = list(topics)
        for shard in list(self._shards.values()):
            self._write(shard, offsets.of_deleted_topics(shard, names), now_ms)

    def _remove_expired(self, shard: GroupShard, now_ms: int) -> None:
        if shard.runtime.state is ShardState.ACTIVE:
            for records in list(offsets.expired(shard, now_ms)):
                self._write(shard, records, now_ms)

    def _write(self, shard: GroupShard, records: list[GroupRecord], now_ms: int) -> None:
        for start in range(0, len(records), TOMBSTONES_PER_BATCH):
            batch = records[start : start + TOMBSTONES_PER_BATCH]
            shard.runtime.execute(partial(_writing, batch), _no_response, now_ms)

    # --- views ---

    def describe_groups(self, group_ids: Sequence[str], now_ms: int) -> Reply[list[DescribedGroup]]:
        """Handle DescribeGroups."""
        return gather([self._describe_group(group_id, now_ms) for group_id in group_ids])

    def _describe_group(self, group_id: str, now_ms: int) -> Reply[DescribedGroup]:
        return self._run(
            group_id,
            lambda shard: describe.describe_group(shard, group_id),
            lambda error: DescribedGroup(group_id=group_id, error_code=error),
            now_ms,
        )

    def describe_consumer_groups(
        self, group_ids: Sequence[str], now_ms: int
    ) -> Reply[list[consumer_group_describe.DescribedGroup]]:
        """Handle ConsumerGroupDescribe."""
        return gather([self._describe_consumer_group(group_id, now_ms) for group_id in group_ids])

    def _describe_consumer_group(
        self, group_id: str, now_ms: int
    ) -> Reply[consumer_group_describe.DescribedGroup]:
        return self._run(
            group_id,
            lambda shard: describe_consumer_group(shard, group_id),
            lambda error: consumer_group_describe.DescribedGroup(
                group_id=group_id, error_code=error
            ),
            now_ms,
        )

    def list_groups(
        self, states: Iterable[str], types: Iterable[str], now_ms: int
    ) -> Reply[tuple[ErrorCode, list[ListedGroup]]]:
        """Handle ListGroups: an error code, and the groups in the given states and of the given types (none: all)."""
        wanted_states = frozenset(state.lower() for state in states)
        wanted_types = frozenset(name.lower() for name in types)
        failures: list[ErrorCode] = []

        def failed(error: ErrorCode) -> list[ListedGroup]:
            if error is not ErrorCode.NOT_COORDINATOR:
                failures.append(error)
            return []

        def collected(lists: list[list[ListedGroup]]) -> tuple[ErrorCode, list[ListedGroup]]:
            if failures:
                return failures[0], []
            groups = [group for listed in lists for group in listed]
            return ErrorCode.NONE, sorted(groups, key=lambda group: group.group_id)

        gathered = gather(
            [
                shard.runtime.execute(
                    partial(describe.list_groups, shard, wanted_states, wanted_types),
                    failed,
                    now_ms,
                )
                for shard in self._shards.values()
            ]
        )
        return gathered.map(collected) if isinstance(gathered, Deferred) else collected(gathered)

    # --- ---

    def _run(
        self,
        group_id: str,
        operation: Callable[[GroupShard], Result[T]],
        failed: Callable[[ErrorCode], T],
        now_ms: int,
    ) -> Reply[T]:
        if not can_be_stored(group_id):
            return failed(ErrorCode.INVALID_GROUP_ID)
        partition = self.partition_for(group_id)
        if partition is None:
            return failed(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(partition)
        if shard is None:
            # The partition exists, and on a single node it is ours: its turn to be loaded has not come yet.
            return failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard.runtime.execute(lambda: operation(shard), failed, now_ms)


def _writing(records: list[GroupRecord]) -> Result[None]:
    return Result(None, records)


def _no_response(_error: ErrorCode) -> None:
    return None
