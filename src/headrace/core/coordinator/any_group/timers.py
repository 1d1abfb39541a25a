"""The operation that runs when a timer of a group expires, for each kind of timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from headrace.core.coordinator.any_group import stopping
from headrace.core.coordinator.classic import membership, rebalance
from headrace.core.coordinator.consumer import removal
from headrace.core.coordinator.runtime import Result, TimerKey
from headrace.core.coordinator.state.classic_group import ClassicGroup
from headrace.core.coordinator.state.consumer_group import ConsumerGroup
from headrace.core.coordinator.state.shard import (
    CONSUMER_JOIN,
    CONSUMER_REBALANCE,
    CONSUMER_SESSION,
    CONSUMER_SYNC,
    JOIN,
    SESSION,
    STOP,
    SYNC,
    GroupShard,
)


def operation_of(
    shard: GroupShard, timer: TimerKey, now_ms: int
) -> Callable[[], Result[None]] | None:
    """Return the operation for an expired timer of a group, or None if the group no longer exists."""
    if timer.kind == STOP:
        return partial(stopping.deadline_passed, shard, timer, now_ms)
    expired = _OF_CONSUMER_GROUPS.get(timer.kind)
    if expired is not None:
        consumers = shard.consumer_groups.get(timer.group_id)
        if consumers is None:
            return None
        return partial(expired, shard, consumers, timer.member_id, now_ms)
    group = shard.classic_groups.get(timer.group_id)
    if group is None:
        return None
    return partial(_OF_CLASSIC_GROUPS[timer.kind], shard, group, timer.member_id, now_ms)


_OF_CONSUMER_GROUPS: Final[
    Mapping[str, Callable[[GroupShard, ConsumerGroup, str, int], Result[None]]]
] = {
    CONSUMER_SESSION: removal.session_expired,
    CONSUMER_REBALANCE: removal.rebalance_expired,
    CONSUMER_JOIN: removal.join_expired,
    CONSUMER_SYNC: removal.sync_expired,
}


def _join_phase_timed_out(
    shard: GroupShard, group: ClassicGroup, _member_id: str, now_ms: int
) -> Result[None]:
    return rebalance.join_phase_timed_out(shard, group, now_ms)


def _sync_phase_timed_out(
    shard: GroupShard, group: ClassicGroup, _member_id: str, now_ms: int
) -> Result[None]:
    return membership.sync_phase_timed_out(shard, group, now_ms)


_OF_CLASSIC_GROUPS: Final[
    Mapping[str, Callable[[GroupShard, ClassicGroup, str, int], Result[None]]]
] = {
    SESSION: membership.session_expired,
    JOIN: _join_phase_timed_out,
    SYNC: _sync_phase_timed_out,
}
