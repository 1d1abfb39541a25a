"""The group coordinator: one method for each request on groups.

A method checks what does not depend on the group's protocol, finds the shard of the group, and runs an operation there.
The package docstring of `headrace.core.coordinator.any_group` describes how groups are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.coordinator.any_group import delete, describe, offsets, stopping, transactional
from headrace.core.coordinator.any_group.kinds import kind_of
from headrace.core.coordinator.classic import coverage, rebalance
from headrace.core.coordinator.consumer.describe import describe_consumer_group
from headrace.core.coordinator.consumer.heartbeat import heartbeat as consumer_heartbeat
from headrace.core.coordinator.consumer.turn import Visible
from headrace.core.coordinator.group_shards import GroupShards
from headrace.core.coordinator.partitioning import can_be_stored
from headrace.core.coordinator.runtime import Reply, Result, gather
from headrace.core.coordinator.sharded import no_response
from headrace.core.coordinator.state.classic_group import ClassicGroup, Origin
from headrace.core.log import Marker
from headrace.errors import ErrorCode
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


def is_valid_group_id(group_id: str) -> bool:
    """Return whether a group with members may have this id."""
    return group_id != "" and can_be_stored(group_id)


class GroupCoordinator(GroupShards):
    """Handles the requests on groups whose partitions of `__consumer_offsets` are loaded.

    All methods are synchronous. A method returns its response, or a Deferred if the response has to wait. Responses
    contain the errors; only `load` raises.
    """

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
        """Return whether the leader assigned by old metadata; true at most once for each change of the topics."""
        shard = self._shard_of(request.group_id)
        return shard is not None and coverage.is_outdated(shard, request)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> Reply[HeartbeatResponse]:
        """Handle a Heartbeat request. While the group is loading the response is NONE: clients know no such error."""

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
        """Handle a LeaveGroup request of any number of members."""

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
        """Handle a LeaveGroup request with the tagged field by which an administrator stops a member."""
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
        """Handle a ConsumerGroupHeartbeat request. `visible` returns whether the client may see a topic."""
        return self._run(
            request.group_id,
            lambda shard: consumer_heartbeat(shard, origin, request, visible, now_ms),
            lambda error: ConsumerGroupHeartbeatResponse(error_code=error),
            now_ms,
        )

    def rebalance(self, group_id: str, reason: str, now_ms: int) -> None:
        """Make the members of a group join again, because of a change that they cannot see."""
        self._run(
            group_id,
            lambda shard: rebalance.rejoin(shard, group_id, reason, now_ms),
            no_response,
            now_ms,
        )

    def exists(self, group_id: str) -> bool:
        """Return whether a group exists: it has members, committed offsets, or an earlier generation."""
        shard = self._shard_of(group_id)
        return shard is not None and (
            group_id in shard.classic_groups or group_id in shard.consumer_groups
        )

    def offsets_count(self, group_id: str) -> int:
        """Return the number of partitions for which a group has committed offsets."""
        shard = self._shard_of(group_id)
        return 0 if shard is None else sum(map(len, shard.offsets.of_group(group_id).values()))

    def partitions_assigned(self, group_id: str) -> int:
        """Return the number of partitions in the target assignment of a consumer group; 0 for classic groups."""
        shard = self._shard_of(group_id)
        group = None if shard is None else shard.consumer_groups.get(group_id)
        return 0 if group is None else sum(map(len, group.targets.values()))

    def supports(self, group_id: str, protocol_name: str) -> bool:
        """Return whether all members of a classic group support a protocol (an assignor); true without members."""
        group = self._find(group_id)
        members = () if group is None else group.members.values()
        return all(any(p.name == protocol_name for p in member.protocols) for member in members)

    def _find(self, group_id: str) -> ClassicGroup | None:
        shard = self._shard_of(group_id)
        return None if shard is None else shard.classic_groups.get(group_id)

    # --- offsets ---

    def commit_offsets(
        self,
        request: OffsetCommitRequest,
        now_ms: int,
        *,
        version: int = 9,
    ) -> Reply[OffsetCommitResponse]:
        """Handle an OffsetCommit request. The empty group id is allowed, as in Kafka.

        Args:
            request: The request.
            now_ms: The time.
            version: The version of the request.
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
        """Handle a TxnOffsetCommit request: the offsets are pending until the transaction is committed."""
        return self._run(
            request.group_id,
            lambda shard: transactional.commit_offsets(shard, request, now_ms),
            lambda error: transactional.commit_failed(request, error),
            now_ms,
        )

    def end_transaction(self, partition: int, marker: Marker, now_ms: int) -> Reply[ErrorCode]:
        """Write a marker into a partition, which commits or discards the producer's pending offsets there."""
        shard = self._shards.get(partition)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
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
        """Handle an OffsetFetch request for any number of groups. The response contains durable offsets only."""
        return gather(
            [self._fetch_group(group, now_ms, require_stable=require_stable) for group in groups]
        )

    def _fetch_group(
        self, request: OffsetFetchRequestGroup, now_ms: int, *, require_stable: bool
    ) -> Reply[OffsetFetchResponseGroup]:
        def failed(error: ErrorCode) -> OffsetFetchResponseGroup:
            if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                # Consumers before 3.9 handle this code as a fatal error in an OffsetFetch response.
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
        """Handle a DeleteGroups request. The empty group id is allowed, as in Kafka."""
        return gather([self._delete_group(group_id, now_ms) for group_id in group_ids])

    def _delete_group(self, group_id: str, now_ms: int) -> Reply[DeletableGroupResult]:
        return self._run(
            group_id,
            lambda shard: delete.delete_group(shard, group_id),
            lambda error: DeletableGroupResult(group_id=group_id, error_code=error),
            now_ms,
        )

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
        """Handle a ListGroups request. Returns an error code, and the groups.

        Args:
            states: The states to list, in any case; empty for all states.
            types: The types to list, in any case; empty for all types.
            now_ms: The time.
        """
        wanted_states = frozenset(state.lower() for state in states)
        wanted_types = frozenset(name.lower() for name in types)
        return self._collect(
            lambda shard: describe.list_groups(shard, wanted_states, wanted_types),
            lambda group: group.group_id,
            now_ms,
            ignored=ErrorCode.NOT_COORDINATOR,
        )
