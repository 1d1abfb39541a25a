"""One turn of a member: the member sends its subscription and owned partitions, and takes a step towards its target.

A turn is a heartbeat of a member of the KIP-848 protocol, or a JoinGroup of a classic member. Its cost depends on the
member's own assignment only, unless the group changes with the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.core.coordinator.consumer.identity import SenderIdentity
from headrace.core.coordinator.consumer.reconcile import reconcile
from headrace.core.coordinator.consumer.removal import unused_regexes
from headrace.core.coordinator.consumer.requests import check_regexes_count
from headrace.core.coordinator.consumer.target import compute_target, target_records
from headrace.core.coordinator.state.consumer_group import (
    NOTHING_ASSIGNED,
    ConsumerGroup,
    member_bytes,
    topics_of,
)
from headrace.core.coordinator.state.consumer_records import (
    Current,
    CurrentMember,
    GroupEpoch,
    MemberMetadata,
    MemberRecord,
    MemberState,
    Partition,
    Partitions,
    ResolvedRegex,
    TargetMember,
)
from headrace.core.coordinator.state.records import GroupRecord
from headrace.core.coordinator.state.shard import (
    CONSUMER_JOIN,
    CONSUMER_REBALANCE,
    CONSUMER_SYNC,
    GroupShard,
)
from headrace.core.coordinator.state.topics import known_topics, metadata_hash
from headrace.errors import ApiError, ErrorCode

Visible = Callable[[str], bool]
"""Returns whether the client that sent a request is authorized to see a topic."""

LARGE_GROUP: Final = 100
"""The number of members from which a target is kept for at least one millisecond per member. Computing a target takes
time in proportion to the members; when a thousand members join at once, this keeps the number of targets small."""
EVALUATION_MS: Final = 500
"""The heartbeat interval of a member whose regular expression is still being evaluated, in milliseconds."""
_WANTS: Final = ("topics", "regex", "assignor", "rack_id")
"""The fields of a member on which the assignment depends."""


class Turn:
    """One request of a member: the state before it, its decisions, and the records to write.

    Attributes:
        group: The group before the turn.
        member_id: The id of the member.
        before: The current assignment of the member before the turn.
        records: The records to write; complete after `run`.
        wait_ms: The time until the member needs another turn, in ms; None for its next regular one. Set by `run`.
    """

    def __init__(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        identity: SenderIdentity,
        member: MemberMetadata,
        now_ms: int,
    ) -> None:
        self.group = group
        self.member_id = identity.member_id
        self.before = identity.current
        self.records: list[GroupRecord] = []
        self.wait_ms: int | None = None
        self._shard = shard
        self._identity = identity
        self._member = member
        self._now_ms = now_ms
        self._regexes = group.regexes
        self._is_resolved = True

    def run(self, owned: Partitions | None, visible: Visible) -> Current:
        """Fill `records`, and return the new current assignment of the member.

        Args:
            owned: The partitions that the member reports as owned; None if they have not changed since its last report.
            visible: Returns whether a regular expression may match a topic.

        Raises:
            ApiError: The regular expression is refused, the group would need too much memory, or a user's assignor
                failed.
        """
        self._require_memory()
        self._write_member()
        self._resolve_regex(visible)
        epoch = self._group_epoch()
        target, target_epoch = self._target(epoch)
        current = reconcile(self.before, target, target_epoch, owned, self._is_free)
        if current != self.group.current.get(self.member_id):
            self.records.append(CurrentMember(self.group.group_id, self.member_id, current))
        return current

    def begin_timers(self, current: Current) -> None:
        """Begin the timers of the member, and store the compared version of the topics. `records` are replayed."""
        shard, group = self._shard, self._shard.consumer_groups[self.group.group_id]
        group.checked = shard.topics.changes
        if self._member.regex is not None and self._is_resolved:
            group.resolved[self._member.regex] = shard.topics.changes
        if self._identity.replaces is not None:
            shard.cancel_consumer_timers(group, self._identity.replaces)
            shard.member_gone(group.group_id, self._identity.replaces)
        shard.begin_consumer_session(group, self.member_id, self._now_ms)
        deadline_ms = self._now_ms + self._member.rebalance_timeout_ms
        timer = shard.consumer_timer(CONSUMER_REBALANCE, group, self.member_id)
        if current.state is not MemberState.UNREVOKED:
            shard.timers.cancel(timer)
        elif current != self.before or timer not in shard.timers:
            shard.timers.set(timer, deadline_ms)
        shard.timers.cancel(shard.consumer_timer(CONSUMER_JOIN, group, self.member_id))
        sync_timer = shard.consumer_timer(CONSUMER_SYNC, group, self.member_id)
        if self._member.classic is None:
            shard.timers.cancel(sync_timer)
        else:
            shard.timers.set(sync_timer, deadline_ms)

    def _require_memory(self) -> None:
        """Refuse a turn that would make the memory of the group exceed its limit.

        Raises:
            ApiError: GROUP_MAX_SIZE_REACHED or COORDINATOR_NOT_AVAILABLE.
        """
        group = self.group
        before = group.members.get(self._identity.replaces or self.member_id)
        if before == self._member:
            return
        added = member_bytes(self._member) - (0 if before is None else member_bytes(before))
        error = self._shard.memory.refusal(group, added)
        if error is not ErrorCode.NONE:
            raise ApiError(error, "The metadata of the group's members is too large.")

    def _write_member(self) -> None:
        group, replaced = self.group, self._identity.replaces
        if replaced is not None:
            self.records += group.member_tombstones(replaced)
        if group.members.get(self.member_id) != self._member:
            self.records.append(MemberRecord(group.group_id, self.member_id, self._member))
        if self._identity.member.regex != self._member.regex:
            wishes = group.wishes_after(self._former, self._member)
            self.records += unused_regexes(group, wishes)

    @property
    def _former(self) -> tuple[str, ...]:
        """The ids under which the group has counted the member until now."""
        return tuple({self.member_id, self._identity.replaces or self.member_id})

    def _resolve_regex(self, visible: Visible) -> None:
        regex, view = self._member.regex, self._shard.topics
        if regex is None or self.group.resolved.get(regex) == view.changes:
            return
        if regex not in self._regexes:
            wishes = self.group.wishes_after(self._former, self._member)
            check_regexes_count({other for _, other in wishes if other is not None})
        matches = view.matching(regex)
        self._is_resolved = matches.is_current
        if not matches.is_current:
            self.wait_ms = EVALUATION_MS
        if matches.names is None:
            return  # the member begins without these topics, or keeps those of the last evaluation
        names = tuple(sorted(filter(visible, matches.names)))
        if self._regexes.get(regex) != names:
            self._regexes = {**self._regexes, regex: names}
            self.records.append(ResolvedRegex(self.group.group_id, regex, names, self._now_ms))

    def _group_epoch(self) -> int:
        """Return the new group epoch: it rises by one if subscriptions or subscribed topics have changed."""
        group, view = self.group, self._shard.topics
        wants_more = self._identity.is_new or any(
            getattr(self._member, name) != getattr(self._identity.member, name) for name in _WANTS
        )
        matches_others = self._regexes is not group.regexes
        if not wants_more and not matches_others and group.checked == view.changes:
            return group.epoch
        wishes = group.wishes_after(self._former, self._member)
        hashed = metadata_hash(known_topics(view, topics_of(wishes, self._regexes)))
        if not wants_more and hashed == group.metadata_hash:
            return group.epoch
        self.records.append(GroupEpoch(group.group_id, group.epoch + 1, hashed))
        return group.epoch + 1

    def _target(self, epoch: int) -> tuple[Partitions, int]:
        """Return the new target assignment of the member, and the assignment epoch."""
        group, replaced = self.group, self._identity.replaces
        mine = group.target(replaced or self.member_id)
        if epoch <= group.assignment_epoch or self._is_early():
            # A later turn computes the target assignment, for all changes until then.
            if replaced is not None:
                self.records.append(TargetMember(group.group_id, self.member_id, mine))
            return mine, group.assignment_epoch
        members, targets = dict(group.members), dict(group.targets)
        if replaced is not None:
            del members[replaced]
            targets.pop(replaced, None)
        members[self.member_id], targets[self.member_id] = self._member, mine
        computed = compute_target(
            members,
            self._regexes,
            targets,
            assignors=self._shard.assignors,
            view=self._shard.topics,
            journal=self._shard.journal,
        )
        self.records += target_records(group, computed, epoch, self._now_ms)
        return computed.get(self.member_id, NOTHING_ASSIGNED), epoch

    def _is_early(self) -> bool:
        group = self.group
        size = len(group.members)
        interval_ms = self._shard.times(group.group_id).assignment_interval_ms
        interval_ms = max(interval_ms, size if size >= LARGE_GROUP else 0)
        wait_ms = group.assigned_at_ms + interval_ms - self._now_ms
        if not 0 < wait_ms <= interval_ms:
            return False
        if self._identity.is_new:
            self.wait_ms = wait_ms if self.wait_ms is None else min(wait_ms, self.wait_ms)
        return True

    def _is_free(self, partition: Partition) -> bool:
        owner = self.group.owners.get(partition)
        return owner is None or owner in (self.member_id, self._identity.replaces)


def after_turn(turn: Turn, current: Current) -> Callable[[ErrorCode], None]:
    """Return the function that is called when the records of a turn are written, or could not be written."""

    def after(error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            turn.begin_timers(current)

    return after
