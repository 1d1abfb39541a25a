"""Elections: which replica leads a partition next, and the in-sync replicas of the next leader epoch.

A leader has to have all committed records, so it comes from the ISR, or from the ELR (KIP-966). The ELR has the
replicas that left the ISR while fewer than `min.insync.replicas` were left in it. From then on the high watermark does
not move, so these replicas have everything below it. The ELR is empty when the ISR has enough replicas again.

After a power cut of all brokers, ISR and ELR may be empty: each replica may have lost records that were not synced.
Then the state has the end of the log of each replica that has left (`PartitionState.last_known`). The replica with the
newest record leads: no other one of them has a record that this replica does not have.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from headrace.core.cluster.membership import LiveBroker, Membership
from headrace.core.cluster.records import NO_LEADER, LastKnown, PartitionState

_UNKNOWN: Final = (-1, -1)
"""Less than the end of every log."""


def elect(
    present: PartitionState,
    replicas: Sequence[int],
    membership: Membership,
    *,
    min_isr: int,
    is_unclean: bool = False,
) -> PartitionState | None:
    """Return the state after the election of a leader in place of one that is gone or draining.

    Args:
        present: The present state of the partition.
        replicas: The replicas of the partition. The first one of them that may lead is elected.
        membership: The live brokers.
        min_isr: `min.insync.replicas` of the topic.
        is_unclean: Whether any live replica may lead if no other can.

    Returns:
        The state; None if no replica can lead in place of the present leader.
    """
    running = {broker for broker, each in membership.live.items() if not each.is_draining}
    leader = _first(replicas, running.intersection(present.isr))
    if leader is None:
        leader = _first(replicas, running.intersection(present.elr))
    if leader is not None:
        isr = [each for each in present.isr if each in running]
        return _led_by(leader, present, isr, membership, min_isr=min(min_isr, len(replicas)))
    if present.leader in membership.live:
        return None
    if is_unclean:
        return elect_unclean(present, replicas, membership)
    if present.isr or present.elr or not present.last_known:
        return None
    ends = _log_ends(present)
    newest = max(ends.values())
    leader = _first(replicas, {broker for broker in running if ends.get(broker) == newest})
    return None if leader is None else _led_uncleanly(leader, present, membership)


def elect_unclean(
    present: PartitionState, replicas: Sequence[int], membership: Membership
) -> PartitionState | None:
    """Return the state in which a live replica leads, whatever records it has; None if no replica is live.

    Of the live replicas whose log end is known, the one with the newest record leads, else the first live replica.
    """
    live = [each for each in replicas if each in membership.live]
    if not live:
        return None
    ends = _log_ends(present)
    leader = max(live, key=lambda each: ends.get(each, _UNKNOWN))
    return _led_uncleanly(leader, present, membership)


def _log_ends(present: PartitionState) -> dict[int, tuple[int, int]]:
    """Return leader epoch and log end offset of the replicas whose log end is known. The greatest has all records."""
    return {each.broker: (each.leader_epoch, each.log_end_offset) for each in present.last_known}


def _led_uncleanly(leader: int, present: PartitionState, membership: Membership) -> PartitionState:
    """Return the state in which a replica is the only one in sync. It may lack records that others have."""
    elected = _next(present, membership.live[leader], (leader,), ())
    if leader in {*present.isr, *present.elr}:
        return elected
    return replace(elected, unclean_epoch=elected.leader_epoch)


def elect_preferred(
    present: PartitionState, replicas: Sequence[int], membership: Membership
) -> PartitionState | None:
    """Return the state in which the first replica leads.

    Returns:
        None if the first replica leads already, or is not live and in sync.
    """
    preferred = membership.live.get(replicas[0])
    if (
        preferred is None
        or preferred.is_draining
        or present.leader == preferred.broker_id
        or preferred.broker_id not in present.isr
    ):
        return None
    return _next(present, preferred, present.isr, present.elr)


def without(
    present: PartitionState, broker_id: int, log_end: LastKnown | None = None
) -> PartitionState:
    """Return the state after a broker has left the ISR and the ELR, because its replica may have lost records.

    If the broker leads, no broker leads afterwards. If no replica is left in ISR and ELR, and the last one has left
    with its log end, the replica with the newest record leads next. The last one had been in sync all the time, so the
    newest record is no older than that of the last one. Without this log end a person has to decide.

    Args:
        present: The present state of the partition.
        broker_id: The broker that leaves.
        log_end: The end of its log after a power cut. None if the log is damaged or gone.
    """
    isr = tuple(each for each in present.isr if each != broker_id)
    elr = tuple(each for each in present.elr if each != broker_id)
    leader, epoch, registration = present.leader, present.leader_epoch, present.registration
    if leader == broker_id:
        leader, epoch, registration = NO_LEADER, epoch + 1, 0
    last_known = tuple(each for each in present.last_known if each.broker != broker_id)
    if log_end is not None:
        last_known += (log_end,)
    elif not isr and not elr:
        last_known = ()
    return replace(
        present,
        leader=leader,
        leader_epoch=epoch,
        isr=isr,
        elr=elr,
        registration=registration,
        last_known=last_known,
    )


def _led_by(
    leader: int,
    present: PartitionState,
    isr: Iterable[int],
    membership: Membership,
    *,
    min_isr: int,
) -> PartitionState:
    """Return the state with another leader and ISR. Replicas that leave the ISR stay eligible if it gets too small."""
    members = tuple(dict.fromkeys((*isr, leader)))
    eligible = dict.fromkeys((*present.elr, *present.isr))
    elr = tuple(each for each in eligible if each not in members)
    return _next(present, membership.live[leader], members, elr if len(members) < min_isr else ())


def _next(
    present: PartitionState, leader: LiveBroker, isr: tuple[int, ...], elr: tuple[int, ...]
) -> PartitionState:
    """Return the state of the next leader epoch."""
    epoch, registration = present.leader_epoch + 1, leader.broker_epoch
    return PartitionState(leader.broker_id, epoch, isr, elr, registration, present.unclean_epoch)


def _first(replicas: Sequence[int], candidates: Container[int]) -> int | None:
    return next((each for each in replicas if each in candidates), None)
