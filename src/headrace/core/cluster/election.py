"""Elections: which replica leads a partition next, and the in-sync replicas of the next leader epoch.

A leader has to have all committed records, so it comes from the ISR, or from the ELR (KIP-966). The ELR has the
replicas that left the ISR while fewer than `min.insync.replicas` were left in it. From then on the high watermark does
not move, so these replicas have everything below it. The ELR is empty when the ISR has enough replicas again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from msgspec.structs import replace

from headrace.core.cluster.membership import LiveBroker, Membership
from headrace.core.cluster.records import NO_LEADER, PartitionState


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
        is_unclean: Whether any live replica may lead if no other can. Committed records may be lost.

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
    if present.leader in membership.live or not is_unclean:
        return None
    return elect_unclean(present, replicas, membership)


def elect_unclean(
    present: PartitionState, replicas: Sequence[int], membership: Membership
) -> PartitionState | None:
    """Return the state in which the first live replica leads, whatever records it has; None if no replica is live."""
    leader = _first(replicas, membership.live)
    if leader is None:
        return None
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


def without(present: PartitionState, broker_id: int) -> PartitionState:
    """Return the state after a broker has left the ISR and the ELR, because its replica may have lost records.

    If the broker leads, no broker leads afterwards. If it was the only in-sync replica, an operator has to decide.
    """
    isr = tuple(each for each in present.isr if each != broker_id)
    elr = tuple(each for each in present.elr if each != broker_id)
    leader, epoch, registration = present.leader, present.leader_epoch, present.registration
    if leader == broker_id:
        leader, epoch, registration = NO_LEADER, epoch + 1, 0
    return PartitionState(leader, epoch, isr, elr, registration, present.unclean_epoch)


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
