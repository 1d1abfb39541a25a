"""The invariants. Each function returns what is wrong, or an empty string."""

from __future__ import annotations

from tests.model.state import MEMBERS, RUNNING, Leadership, Replica, State, present


def lost_at_activation(state: State, broker: int, replica: Replica) -> str:
    """Check that a new leader has all committed records that no leader has deleted."""
    committed = state.committed
    if replica.start > state.deleted:
        return (
            f"broker {broker} leads epoch {replica.epoch} from offset {replica.start}, "
            f"but only records below {state.deleted} were deleted"
        )
    if replica.log[: len(committed) - replica.start] != committed[replica.start :]:
        return (
            f"broker {broker} leads epoch {replica.epoch} without committed records: "
            f"it has {replica.log} from offset {replica.start}, committed are {committed}"
        )
    return ""


def led_twice(state: State, broker: int, epoch: int) -> str:
    """Check that no other process has led in an epoch: none leads in it, and no record has it."""
    for other, replica in enumerate(state.replicas):
        if replica.lead is not None and replica.epoch == epoch and other != broker:
            return f"brokers {other} and {broker} lead in epoch {epoch}"
        if epoch in replica.log:
            return f"broker {broker} leads epoch {epoch}, whose records broker {other} has already"
    if epoch in state.committed:
        return f"broker {broker} leads epoch {epoch}, which has committed records already"
    return ""


def wrong_below_high_watermark(committed: tuple[int, ...], broker: int, replica: Replica) -> str:
    """Check that consumers of a replica read committed records only."""
    visible = replica.log[: replica.high_watermark - replica.start]
    if replica.high_watermark > len(committed):
        return f"broker {broker} has the high watermark {replica.high_watermark}, committed are {committed}"
    if visible != committed[replica.start : replica.high_watermark]:
        return (
            f"consumers of broker {broker} see {visible} from offset {replica.start}, "
            f"committed are {committed}"
        )
    return ""


def false_progress(
    leader: Replica, follower: Replica, offset: int, *, broker_epoch: int, syncs: bool
) -> str:
    """Check that a follower has what its fetch promises, when the leader takes the fetch into account.

    A follower that has restarted or moved to another leader epoch since is left out.
    """
    if (follower.epoch, follower.broker_epoch) != (leader.epoch, broker_epoch):
        return ""
    has = follower.synced if syncs else follower.end
    begin = max(leader.start, follower.start)
    own = follower.log[begin - follower.start : offset - follower.start]
    if has < offset or own != leader.log[begin - leader.start : offset - leader.start]:
        return f"a follower promises the records below {offset}, and has {follower.log} up to {has}"
    return ""


def incomplete_candidate(state: State) -> str:
    """Check that every member of ISR and ELR has all committed records.

    A broker after an unclean start is left out until it has left.
    """
    committed = state.committed
    leadership: Leadership = present(state.metadata)
    for broker in MEMBERS[leadership.isr | leadership.elr]:
        replica = state.replicas[broker]
        if replica.phase == RUNNING and (
            replica.log[: len(committed) - replica.start] != committed[replica.start :]
        ):
            return (
                f"broker {broker} may be elected and has {replica.log}, committed are {committed}"
            )
    return ""
