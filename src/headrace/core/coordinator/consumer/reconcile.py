"""How one member is led to its target, a step with each of its heartbeats."""

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
    """Return what a member holds from now on.

    Args:
        current: What it holds.
        target: What the target gives it.
        target_epoch: The epoch of the target.
        owned: What it says that it owns; None if it does not say, because nothing has changed since it last did.
        is_free: Whether a partition is held by nobody.
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
        # It keeps its epoch, so that it may commit for what it is about to give up.
        return Current(current.epoch, current.previous_epoch, MemberState.UNREVOKED, kept, revoking)
    missing = target - kept
    # Partitions that it has just given up itself count as free: a newer target may have given them back to it.
    own = current.assigned | current.revoking
    free = frozenset(p for p in missing if p in own or is_free(p))
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    previous = current.previous_epoch if current.epoch == target_epoch else current.epoch
    return Current(target_epoch, previous, state, kept | free, frozenset())
