"""The group coordinator: finds the shard of a group, checks what is the same for all, and runs the operation there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from headrace.core.coordinator.classic import coverage, rebalance
from headrace.core.coordinator.consumer.describe import describe_consumer_group
from headrace.core.coordinator.consumer.downgrade import REASON, needs_rebalance
from headrace.core.coordinator.consumer.heartbeat import heartbeat as consumer_heartbeat
from headrace.core.coordinator.consumer.turn import Visible
from headrace.core.coordinator.group import delete, describe, offsets, stopping, transactional
from headrace.core.coordinator.group.kinds import kind_of
from headrace.core.coordinator.group.timers import operation_of
from headrace.core.coordinator.partitioning import can_be_stored
from headrace.core.coordinator.runtime import CoordinatorLog, Reply, Result, Timer, gather
from headrace.core.coordinator.sharded import (
    EXPIRY,
    TOMBSTONES_PER_BATCH,
    ShardedCoordinator,
    no_response,
)
from headrace.core.coordinator.state.assignors import OWN_ASSIGNORS, Assignor
from headrace.core.coordinator.state.classic_group import Group, Origin
from headrace.core.coordinator.state.config import ConsumerTimes, GroupConfig
from headrace.core.coordinator.state.memory import GroupMemory
from headrace.core.coordinator.state.records import GroupRecord
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.topics import TopicsView
from headrace.core.log import Marker
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
from headrace.protocol.messages.leave_group import (
    HeadraceStop,
    LeaveGroupResponse,
    MemberIdentity,
)
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
LOOKED_AT_FOR_EXPIRY: Final = 20_000
"""How many offsets are looked at in one step, to see whether they have expired: some 10 milliseconds."""
_GROUP_COST: Final = 5
_TOMBSTONE_COST: Final = 6
"""The cost of writing one offset, in numbers of offsets that are checked."""
_PAUSE_MS: Final = 100
"""The pause between two steps, in milliseconds."""


def is_valid_group_id(group_id: str) -> bool:
    """Whether a group that has members may be called this."""
    return group_id != "" and can_be_stored(group_id)


class GroupCoordinator(ShardedCoordinator[GroupShard]):
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
        """For each partition, the groups that the running check for expired offsets has not visited yet."""

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

    def _run_timer(self, shard: GroupShard, timer: Timer, now_ms: int) -> None:
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
                self._timers.set(Timer(EXPIRY, shard.partition), now_ms + _PAUSE_MS)
                break
        return found

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
        """Handle a JoinGroup request."""

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
        """Handle a SyncGroup request."""

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

    def leader_is_outdated(self, request: SyncGroupRequest) -> bool:
        """Whether a leader assigns by old metadata, and is to refresh them; said once for each change of topics."""
        shard = self._shard_of(request.group_id)
        return shard is not None and coverage.is_outdated(shard, request)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Reply[HeartbeatResponse]:
        """Handle a Heartbeat request. While the group is loading the answer is NONE: clients handle no such error."""

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

    def stop_member(
        self, group_id: str, wanted: HeadraceStop, now_ms: int
    ) -> Reply[LeaveGroupResponse]:
        """Handle LeaveGroup with the tagged field by which an administrator stops a member."""
        return self._run(
            group_id,
            lambda shard: stopping.stop_member(shard, group_id, wanted, now_ms),
            lambda error: LeaveGroupResponse(error_code=error),
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
            no_response,
            now_ms,
        )

    def exists(self, group_id: str) -> bool:
        """Whether there is a group of this name: members, committed offsets, or a former generation."""
        shard = self._shard_of(group_id)
        return shard is not None and (group_id in shard.groups or group_id in shard.consumers)

    def offsets_count(self, group_id: str) -> int:
        """Return for how many partitions a group has committed offsets."""
        shard = self._shard_of(group_id)
        return 0 if shard is None else sum(map(len, shard.offsets.of_group(group_id).values()))

    def partitions_assigned(self, group_id: str) -> int:
        """Return how many partitions the members of a consumer group have, or are to have."""
        shard = self._shard_of(group_id)
        group = None if shard is None else shard.consumers.get(group_id)
        return 0 if group is None else sum(map(len, group.targets.values()))

    def supports(self, group_id: str, protocol_name: str) -> bool:
        """Whether all members that a group may have support a protocol (an assignor)."""
        group = self._find(group_id)
        members = () if group is None else group.members.values()
        return all(any(p.name == protocol_name for p in member.protocols) for member in members)

    def _find(self, group_id: str) -> Group | None:
        shard = self._shard_of(group_id)
        return None if shard is None else shard.groups.get(group_id)

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
        """Handle an OffsetDelete request."""
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

    def topics_deleted(self, topics: Iterable[str], now_ms: int) -> Reply[list[None]]:
        """Forget the offsets that groups have committed for topics that are gone; durable when it is answered."""
        return gather(
            [
                reply
                for topic in topics
                for _, replies in self.forget_offsets(topic, now_ms)
                for reply in replies
            ]
        )

    def forget_offsets(
        self, topic: str, now_ms: int, is_back: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, list[Reply[None]]]]:
        """Forget the offsets that groups have committed for a topic that is gone, a thousand at a time.

        Args:
            topic: The topic.
            now_ms: When it went.
            is_back: Whether there is a topic of that name again. What groups have committed for that one stays.

        Yields:
            How many were forgotten, and the replies that come when that is durable.
        """
        for shard in list(self._shards.values()):
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
        self, partition: int, exists: Callable[[str], bool], now_ms: int
    ) -> int:
        """Forget the offsets of topics that do not exist, in a partition that was loaded.

        A crash may take back that they were forgotten, and partitions that are not loaded cannot forget.

        Returns:
            How many offsets it were.
        """
        shard = self._shards[partition]
        gone = sorted(topic for topic in shard.offsets.topics() if not exists(topic))
        records = offsets.of_deleted_topics(shard, gone)
        self._write(shard, records, now_ms)
        return len(records)

    # --- views ---

    def describe_groups(self, group_ids: Sequence[str], now_ms: int) -> Reply[list[DescribedGroup]]:
        """Handle a DescribeGroups request."""
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
        """Handle a ConsumerGroupDescribe request."""
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
        return self._collect(
            lambda shard: describe.list_groups(shard, wanted_states, wanted_types),
            lambda group: group.group_id,
            now_ms,
            ignored=ErrorCode.NOT_COORDINATOR,
        )

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
        return super()._run(group_id, operation, failed, now_ms)
