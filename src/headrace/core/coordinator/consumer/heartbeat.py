"""ConsumerGroupHeartbeat: joining, staying, and being led to the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.core.coordinator.consumer.group import (
    NOTHING_ASSIGNED,
    ConsumerGroup,
    topics_of,
)
from headrace.core.coordinator.consumer.identity import Identity, identify
from headrace.core.coordinator.consumer.reconcile import reconcile
from headrace.core.coordinator.consumer.records import (
    ConsumerRecord,
    Current,
    CurrentMember,
    GroupEpoch,
    MemberMetadata,
    MemberRecord,
    MemberState,
    Partitions,
    ResolvedRegex,
)
from headrace.core.coordinator.consumer.removal import leave, unused_regexes
from headrace.core.coordinator.consumer.requests import check_request, is_full, owned_partitions
from headrace.core.coordinator.consumer.target import Targets, compute_target, target_records
from headrace.core.coordinator.consumer.topics import known_topics, metadata_hash
from headrace.core.coordinator.group.classic import Origin
from headrace.core.coordinator.group.records import GroupMetadata, GroupRecord
from headrace.core.coordinator.group.shard import CONSUMER_REBALANCE, GroupShard
from headrace.core.coordinator.group.states import GroupState
from headrace.core.coordinator.runtime import Result
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

Visible = Callable[[str], bool]
"""Whether the client that sent a request may see a topic."""

_WANTS: Final = ("topics", "regex", "assignor", "rack_id")
"""What of a member the assignment depends on."""


def heartbeat(
    shard: GroupShard,
    origin: Origin,
    request: ConsumerGroupHeartbeatRequest,
    visible: Visible,
    now_ms: int,
) -> Result[ConsumerGroupHeartbeatResponse]:
    """Handle one heartbeat; what is wrong with it is in the response, with a reason."""
    try:
        check_request(request, origin.api_version, shard.assignors)
        if request.member_epoch < 0:
            return leave(shard, request)
        return _Turn(shard, origin, request, now_ms).run(visible)
    except ApiError as error:
        return Result(
            ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
        )


class _Turn:
    """One heartbeat of a member that joins or stays: what it finds, what it decides, what is written for it."""

    def __init__(
        self,
        shard: GroupShard,
        origin: Origin,
        request: ConsumerGroupHeartbeatRequest,
        now_ms: int,
    ) -> None:
        self.shard = shard
        self.request = request
        self.now_ms = now_ms
        self.records: list[GroupRecord] = []
        self.group = self._find_group()
        new_id = _uuid_text(shard.entropy.uuid()) if not request.member_id else request.member_id
        limit = shard.config.group_consumer_max_size
        self.identity: Identity = identify(self.group, request, new_id, limit)
        self.member_id = self.identity.member_id
        self.member = _updated(self.identity.member, request, origin)
        self.members: dict[str, MemberMetadata] = dict(self.group.members)
        self.members.pop(self.identity.replaces or "", None)
        self.members[self.member_id] = self.member
        self.regexes: dict[str, tuple[str, ...]] = dict(self.group.regexes)

    def run(self, visible: Visible) -> Result[ConsumerGroupHeartbeatResponse]:
        """Decide."""
        self._write_member()
        self._resolve_regex(visible)
        epoch = self._group_epoch()
        targets, target_epoch = self._targets(epoch)
        owners, mine = self.group.owners, {None, self.member_id, self.identity.replaces}
        before = self.identity.current
        current = reconcile(
            before,
            targets.get(self.member_id, NOTHING_ASSIGNED),
            target_epoch,
            NOTHING_ASSIGNED if self.request.member_epoch == 0 else owned_partitions(self.request),
            lambda partition: owners.get(partition) in mine,
        )
        if current != self.group.current.get(self.member_id):
            self.records.append(CurrentMember(self.group.group_id, self.member_id, current))
        return Result(self._response(before, current), self.records, self._done(before, current))

    # --- what it finds ---

    def _find_group(self) -> ConsumerGroup:
        group_id = self.request.group_id
        group = self.shard.consumers.get(group_id)
        if group is not None:
            return group
        if self.request.member_epoch != 0:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        classic = self.shard.groups.get(group_id)
        if classic is not None:
            if classic.state is not GroupState.EMPTY:
                raise ApiError(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"Group {group_id} is not a consumer group: it has members of the classic protocol.",
                )
            if classic.is_stored:
                self.records.append(GroupMetadata(group_id, None))
        return ConsumerGroup(group_id)

    # --- what it decides ---

    def _write_member(self) -> None:
        group_id, replaced = self.group.group_id, self.identity.replaces
        if replaced is not None:
            self.records += self.group.member_tombstones(replaced)
        if self.group.members.get(self.member_id) != self.member:
            self.records.append(MemberRecord(group_id, self.member_id, self.member))
        if self.identity.member.regex != self.member.regex:
            unused: list[ConsumerRecord] = list(unused_regexes(self.group, self.members))
            self.records += unused

    def _resolve_regex(self, visible: Visible) -> None:
        regex, view = self.member.regex, self.shard.topics
        if regex is None or self.group.resolved.get(regex) == view.changes:
            return
        names = tuple(sorted(filter(visible, view.matching(regex))))
        if self.regexes.get(regex) != names:
            self.regexes[regex] = names
            self.records.append(ResolvedRegex(self.group.group_id, regex, names, self.now_ms))

    def _group_epoch(self) -> int:
        """Return the group epoch from now on: one more if what members want has changed, or what there is of it."""
        group = self.group
        wants_more = self.identity.is_new or any(
            getattr(self.member, name) != getattr(self.identity.member, name) for name in _WANTS
        )
        if not wants_more and group.checked == self.shard.topics.changes:
            return group.epoch
        wanted = {topics_of(member, self.regexes) for member in self.members.values()}
        topics = known_topics(self.shard.topics, frozenset().union(*wanted))
        hashed = metadata_hash(topics)
        if not wants_more and hashed == group.metadata_hash:
            return group.epoch
        self.records.append(GroupEpoch(group.group_id, group.epoch + 1, hashed))
        return group.epoch + 1

    def _targets(self, epoch: int) -> tuple[Targets, int]:
        """Return the target from now on, and its epoch."""
        group, replaced = self.group, self.identity.replaces
        targets: dict[str, Partitions] = dict(group.targets)
        if replaced is not None:
            targets[self.member_id] = targets.pop(replaced, NOTHING_ASSIGNED)
        if epoch > group.assignment_epoch:
            computed = compute_target(
                self.members,
                self.regexes,
                targets,
                assignors=self.shard.assignors,
                view=self.shard.topics,
                journal=self.shard.journal,
            )
            records: list[ConsumerRecord] = list(
                target_records(group, computed, epoch, self.now_ms)
            )
            self.records += records
            return computed, epoch
        if replaced is not None:
            target_record = next(
                iter(target_records(group, {self.member_id: targets[self.member_id]}, 0, 0))
            )
            self.records.append(target_record)
        return targets, group.assignment_epoch

    # --- what follows ---

    def _done(self, before: Current, current: Current) -> Callable[[ErrorCode], None]:
        changes = self.shard.topics.changes

        def done(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                return
            shard, group = self.shard, self.shard.consumers[self.group.group_id]
            group.checked = changes
            if self.member.regex is not None:
                group.resolved[self.member.regex] = changes
            if self.identity.replaces is not None:
                shard.cancel_consumer_timers(group, self.identity.replaces)
            shard.begin_consumer_session(group.group_id, self.member_id, self.now_ms)
            timer = shard.consumer_timer(CONSUMER_REBALANCE, group, self.member_id)
            if current.state is not MemberState.UNREVOKED:
                shard.timers.cancel(timer)
            elif current != before or timer not in shard.timers:
                shard.timers.set(timer, self.now_ms + self.member.rebalance_timeout_ms)

        return done

    def _response(self, before: Current, current: Current) -> ConsumerGroupHeartbeatResponse:
        request = self.request
        told = (
            is_full(request)
            or request.member_epoch != before.epoch
            or current.assigned != before.assigned
        )
        return ConsumerGroupHeartbeatResponse(
            member_id=self.member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self.shard.config.group_consumer_heartbeat_interval_ms,
            assignment=_assignment(current.assigned) if told else None,
        )


def _updated(
    member: MemberMetadata, request: ConsumerGroupHeartbeatRequest, origin: Origin
) -> MemberMetadata:
    """Return a member as its request changes it: what is null stays."""
    given: Mapping[str, object] = {
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "topics": None
        if request.subscribed_topic_names is None
        else tuple(sorted(set(request.subscribed_topic_names))),
        "rebalance_timeout_ms": None
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        "assignor": request.server_assignor,
        "client_id": origin.client_id,
        "client_host": origin.client_host,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    if request.subscribed_topic_regex is not None:
        changed["regex"] = request.subscribed_topic_regex or None
    updated: MemberMetadata = member._replace(**changed)  # type: ignore[arg-type]  # by field, as given above
    return updated


def _assignment(partitions: Partitions) -> Assignment:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in topics.items()
        ]
    )


def _uuid_text(uuid: bytes) -> str:
    text = uuid.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
