"""The step of one member towards its target assignment, which each of its heartbeats takes."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.coordinator.state.consumer_records import (
    Current,
    MemberState,
    Partition,
    Partitions,
)


def reconcile(
    current: Current,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[Partition], bool],
) -> Current:
    """Return the new current assignment of a member.

    Args:
        current: The current assignment before.
        target: The target assignment of the member.
        target_epoch: The epoch of the target assignment.
        owned: The partitions that the member reports as owned; None if they have not changed since its last report.
        is_free: Returns whether no member owns a partition.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED and (
        owned is None or not owned.isdisjoint(current.revoking)
    ):
        return current
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and (owned is None or not owned.isdisjoint(revoking)):
        # The member keeps its epoch, so that it may commit offsets of the partitions that it must revoke.
        return Current(current.epoch, current.previous_epoch, MemberState.UNREVOKED, kept, revoking)
    missing = target - kept
    # Partitions that the member itself has just revoked count as free: a newer target may assign them to it again.
    own = current.assigned | current.revoking
    free = frozenset(p for p in missing if p in own or is_free(p))
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    previous = current.previous_epoch if current.epoch == target_epoch else current.epoch
    return Current(target_epoch, previous, state, kept | free, frozenset())
