"""The groups of one partition of `__consumer_offsets`: replayed state, timers, and parked requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from headrace.core.coordinator.pace import MILLISECOND, Pace
from headrace.core.coordinator.runtime import CoordinatorLog, Result, ShardRuntime, TimerKey, Timers
from headrace.core.coordinator.state.assignors import OWN_ASSIGNORS, ServerAssignor
from headrace.core.coordinator.state.classic_group import ClassicGroup, ClassicGroupMember
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.config import ConsumerTimes, GroupConfig
from headrace.core.coordinator.state.consumer_group import ConsumerGroup
from headrace.core.coordinator.state.consumer_records import ConsumerRecord, MemberState
from headrace.core.coordinator.state.memory import GroupMemory
from headrace.core.coordinator.state.offset_store import OffsetStore
from headrace.core.coordinator.state.records import (
    GenerationRecord,
    GroupRecord,
    OffsetCommit,
    PendingOffset,
    decode_latest,
    encode_records,
)
from headrace.core.coordinator.state.stops import Stops
from headrace.core.coordinator.state.topics import NoTopics, TopicsView
from headrace.core.log import Marker
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.ports import Entropy, Journal
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupResponse
from headrace.types import Buffer

SESSION = "session"
JOIN = "join"
SYNC = "sync"
CONSUMER_SESSION = "consumer-session"
CONSUMER_REBALANCE = "consumer-rebalance"
CONSUMER_JOIN = "consumer-join"
CONSUMER_SYNC = "consumer-sync"
STOP = "stop"
SESSION_US: Final = 5
"""The time to start the session of a loaded member, in microseconds."""
CONSUMER_TIMERS = (CONSUMER_SESSION, CONSUMER_REBALANCE, CONSUMER_JOIN, CONSUMER_SYNC)


class GroupShard:
    """State and helper methods for the operations on groups. The operations are functions in other modules.

    Attributes:
        runtime: Appends and replays records, and holds responses back.
        classic_groups: All classic groups by id, including groups with only offsets or only pending member ids.
        consumer_groups: All groups of the KIP-848 protocol by id. A group with offsets is also in `classic_groups`.
        offsets: Committed offsets; durable.
        times: Returns the timeouts of a consumer group, by its id.
        memory: Counts the memory of the groups.
        stops: The members that an administrator stops.
    """

    def __init__(
        self,
        partition: int,
        log: CoordinatorLog,
        config: GroupConfig,
        *,
        timers: Timers,
        entropy: Entropy,
        journal: Journal,
        topics: TopicsView | None = None,
        assignors: Mapping[str, ServerAssignor] = OWN_ASSIGNORS,
        times: Callable[[str], ConsumerTimes] | None = None,
        memory: GroupMemory | None = None,
    ) -> None:
        self.partition = partition
        self.config = config
        self.entropy = entropy
        self.journal = journal
        self.timers = timers
        self.topics = NoTopics() if topics is None else topics
        self.assignors = assignors
        self.times = times or (lambda _group_id: config.consumer_times)
        self.classic_groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.memory = GroupMemory() if memory is None else memory
        self.offsets = OffsetStore(self.memory)
        self.stops = Stops()
        self.after_load: Callable[[ClassicGroup, int], Callable[[], Result[None]] | None] = _nothing
        """Returns the operation that a newly loaded group needs, or None. The coordinator sets it."""
        self.runtime: ShardRuntime[GroupRecord] = ShardRuntime(
            partition,
            log,
            self,
            timers=timers,
            commit_timeout_ms=config.offsets_commit_timeout_ms,
            journal=journal,
        )

    # --- durable state ---

    def replay(self, record: GroupRecord) -> bool:
        """Apply one record, or a part of a marker. Generations and offsets change only here.

        Returns:
            Whether a part of the record is left.
        """
        if isinstance(record, PendingOffset):
            self.offsets.replay_pending(record)
            self._group(record.commit.group_id)
        elif isinstance(record, Marker):
            groups, is_left = self.offsets.replay_marker(record)
            for group_id in groups:
                self.forget_if_void(group_id)
            return is_left
        elif isinstance(record, OffsetCommit):
            self.offsets.replay(record)
            if record.committed is not None:
                self._group(record.group_id)
            else:
                self.forget_if_void(record.group_id)
        elif not isinstance(record, GenerationRecord):
            self._replay_consumer(record)
        elif record.generation is not None:
            group = self._group(record.group_id)
            group.replay(record.generation)
            self.memory.count(group)
        elif (gone := self.classic_groups.pop(record.group_id, None)) is not None:
            self.memory.forget(gone)
            self.cancel_timers(gone)
            if self.offsets.has_any(record.group_id):
                self._group(record.group_id)
        return False

    def _replay_consumer(self, record: ConsumerRecord) -> None:
        group = self.consumer_groups.get(record.group_id)
        if group is None:
            group = self.consumer_groups[record.group_id] = ConsumerGroup(record.group_id)
        group.replay(record)
        self.memory.count(group)
        if group.is_void:
            self.memory.forget(group)
            del self.consumer_groups[record.group_id]

    def encode(self, records: Sequence[GroupRecord], now_ms: int) -> bytes:
        """Return the records as one batch."""
        return encode_records(records, now_ms)

    def decode(self, batches: Buffer) -> Iterable[tuple[int, GroupRecord | None] | None]:
        """Yield the records of batches, without records that later ones replace."""
        return decode_latest(batches)

    def loaded(self, now_ms: int) -> Iterator[Callable[[], Result[None]] | None]:
        """Start a full session for every member, and a full sync timeout for generations without an assignment."""
        pace = Pace()
        for group in self.classic_groups.values():
            for member in group.members.values():
                self.reset_session(group, member, now_ms)
            if group.state is GroupState.COMPLETING_REBALANCE:
                self.await_syncs(group, now_ms)
            if (operation := self.after_load(group, now_ms)) is not None:
                yield operation
            pace.done_us += (1 + len(group.members)) * SESSION_US
            if pace.done_us >= MILLISECOND:
                yield from pace.pauses()
        for consumer_group in self.consumer_groups.values():
            self._begin_consumer_timers(consumer_group, now_ms)
            pace.done_us += (1 + len(consumer_group.members)) * SESSION_US
            if pace.done_us >= MILLISECOND:
                yield from pace.pauses()

    def unloaded(self, error: ErrorCode) -> Iterator[None]:
        """Drop all state. The rest of the work answers parked requests, and frees the state."""
        groups, self.classic_groups = self.classic_groups, {}
        consumers, self.consumer_groups = self.consumer_groups, {}
        offsets, self.offsets = self.offsets, OffsetStore(self.memory)
        for group_id, member_id in self.stops.pending:
            self.timers.cancel(TimerKey(STOP, self.partition, group_id, member_id))
        self.stops.clear()
        return self._free(groups, consumers, offsets, error)

    def _free(
        self,
        groups: dict[str, ClassicGroup],
        consumers: dict[str, ConsumerGroup],
        offsets: OffsetStore,
        error: ErrorCode,
    ) -> Iterator[None]:
        pace = Pace()
        while groups:
            group = groups.popitem()[1]
            self.memory.forget(group)
            self.cancel_timers(group)
            for member in group.members.values():
                if member.awaiting_join is not None:
                    self.answer_join(member, JoinGroupResponse(error_code=error, member_id=""))
                if member.awaiting_sync is not None:
                    self.answer_sync(member, SyncGroupResponse(error_code=error))
            pace.done_us += (1 + len(group.members)) * SESSION_US
            if pace.done_us >= MILLISECOND:
                yield from pace.pauses()
        while consumers:
            consumer_group = consumers.popitem()[1]
            self.memory.forget(consumer_group)
            for member_id in consumer_group.members:
                self.cancel_consumer_timers(consumer_group, member_id)
            pace.done_us += (1 + len(consumer_group.members)) * SESSION_US
            if pace.done_us >= MILLISECOND:
                yield from pace.pauses()
        yield from offsets.free()

    def _group(self, group_id: str) -> ClassicGroup:
        group = self.classic_groups.get(group_id)
        if group is None:
            group = self.classic_groups[group_id] = ClassicGroup(group_id)
        return group

    def forget_if_void(self, group_id: str) -> None:
        """Drop a group without any state in the log or in memory."""
        group = self.classic_groups.get(group_id)
        if group is not None:
            self.memory.count(group)
            if group.is_void and not self.offsets.has_any(group_id):
                del self.classic_groups[group_id]

    def drop_classic(self, group: ClassicGroup) -> None:
        """Drop the members of a classic group that has become a consumer group; its offsets stay."""
        self.cancel_timers(group)
        if self.classic_groups.get(group.group_id) is group:
            self.memory.forget(group)
            del self.classic_groups[group.group_id]
            if self.offsets.has_any(group.group_id):
                self._group(group.group_id)

    def create_group(self, group_id: str) -> ClassicGroup:
        """Return the group, created in soft state if it does not exist."""
        return self._group(group_id)

    # --- timers ---

    def reset_session(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        now_ms: int,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Restart the session of a member with its session timeout, or with `timeout_ms`."""
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.timers.set(self.timer(SESSION, group, member.member_id), now_ms + timeout_ms)

    def await_syncs(self, group: ClassicGroup, now_ms: int) -> None:
        """Start the timer for the SyncGroup of every member."""
        group.pending_sync = set(group.members)
        self.timers.set(self.timer(SYNC, group), now_ms + group.rebalance_timeout_ms)

    def synced(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """Mark a member as having sent SyncGroup."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self.timers.cancel(self.timer(SYNC, group))

    def timer(self, kind: str, group: ClassicGroup, member_id: str = "") -> TimerKey:
        """Return the key of one of the group's timers."""
        return TimerKey(kind, self.partition, group.group_id, member_id)

    def cancel_timers(self, group: ClassicGroup) -> None:
        """Cancel all timers of a group."""
        for kind in (JOIN, SYNC):
            self.timers.cancel(self.timer(kind, group))
        for member_id in [*group.members, *group.pending]:
            self.timers.cancel(self.timer(SESSION, group, member_id))

    def consumer_timer(self, kind: str, group: ConsumerGroup, member_id: str) -> TimerKey:
        """Return the key of a timer of a consumer group's member."""
        return TimerKey(kind, self.partition, group.group_id, member_id)

    def begin_consumer_session(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Restart the session of a member of a consumer group."""
        classic = group.members[member_id].classic
        timeout_ms = (
            self.times(group.group_id).session_timeout_ms
            if classic is None
            else classic.session_timeout_ms
        )
        self.timers.set(
            self.consumer_timer(CONSUMER_SESSION, group, member_id), now_ms + timeout_ms
        )

    def await_join(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Start the timer for the JoinGroup of a classic member of a consumer group, unless it is running."""
        timer = self.consumer_timer(CONSUMER_JOIN, group, member_id)
        if timer not in self.timers:
            self.timers.set(timer, now_ms + group.members[member_id].rebalance_timeout_ms)

    def cancel_consumer_timers(self, group: ConsumerGroup, member_id: str) -> None:
        """Cancel the timers of a consumer group's member."""
        for kind in CONSUMER_TIMERS:
            self.timers.cancel(self.consumer_timer(kind, group, member_id))

    def member_gone(self, group_id: str, member_id: str) -> None:
        """End the pending stop of a member that has left its group."""
        if self.stops.find(group_id, member_id) is not None:
            self.timers.cancel(TimerKey(STOP, self.partition, group_id, member_id))
            self.stops.gone(group_id, member_id)

    def _begin_consumer_timers(self, group: ConsumerGroup, now_ms: int) -> None:
        for member_id, member in group.members.items():
            self.begin_consumer_session(group, member_id, now_ms)
            if group.holding(member_id).state is MemberState.UNREVOKED:
                timer = self.consumer_timer(CONSUMER_REBALANCE, group, member_id)
                self.timers.set(timer, now_ms + member.rebalance_timeout_ms)

    # --- parked members ---

    def answer_join(self, member: ClassicGroupMember, response: JoinGroupResponse) -> bool:
        """Answer a member's parked JoinGroup, if there is one."""
        deferred, member.awaiting_join = member.awaiting_join, None
        if deferred is None:
            return False
        self.runtime.answer(
            deferred,
            response,
            lambda error: JoinGroupResponse(error_code=error, member_id=response.member_id),
        )
        return True

    def answer_sync(self, member: ClassicGroupMember, response: SyncGroupResponse) -> bool:
        """Answer a member's parked SyncGroup, if there is one."""
        deferred, member.awaiting_sync = member.awaiting_sync, None
        if deferred is None:
            return False
        self.runtime.answer(deferred, response, lambda error: SyncGroupResponse(error_code=error))
        return True

    def park_join(self, member: ClassicGroupMember, deferred: Deferred[JoinGroupResponse]) -> None:
        """Park a JoinGroup; an earlier one of the same member is answered so that the client retries."""
        self.answer_join(
            member,
            JoinGroupResponse(
                error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id
            ),
        )
        member.awaiting_join = deferred

    def park_sync(self, member: ClassicGroupMember, deferred: Deferred[SyncGroupResponse]) -> None:
        """Park a SyncGroup; an earlier one of the same member is answered so that the client retries."""
        self.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaiting_sync = deferred

    def remove_member(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a member or a pending member id from the working membership, and answer its parked requests."""
        self.timers.cancel(self.timer(SESSION, group, member_id))
        self.member_gone(group.group_id, member_id)
        member = group.remove(member_id)
        self.memory.count(group)
        if member is not None:
            # A new member may still wait for its first generation: the response lets it retry with a new id.
            error = ErrorCode.UNKNOWN_MEMBER_ID
            self.answer_join(member, JoinGroupResponse(error_code=error, member_id=""))
            self.answer_sync(member, SyncGroupResponse(error_code=error))

    def fence(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """Answer the parked requests of a replaced static member with FENCED_INSTANCE_ID."""
        self.timers.cancel(self.timer(SESSION, group, member.member_id))
        self.member_gone(group.group_id, member.member_id)
        error = ErrorCode.FENCED_INSTANCE_ID
        self.answer_join(member, JoinGroupResponse(error_code=error, member_id=member.member_id))
        self.answer_sync(member, SyncGroupResponse(error_code=error))


def _nothing(_group: ClassicGroup, _now_ms: int) -> None:
    return None
