"""The steps of a leader: appends, fetches of followers, the high watermark, proposals of another ISR, log start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from tests.model import checks
from tests.model.state import (
    MEMBERS,
    UNKNOWN,
    Commit,
    Lead,
    Leadership,
    Pending,
    Replica,
    Request,
    Response,
    State,
    changed,
    is_possible,
)

if TYPE_CHECKING:
    from tests.model.model import Label, Model, Step

T = TypeVar("T")


def steps(model: Model, state: State, broker: int, replica: Replica, lead: Lead) -> Iterator[Step]:
    """Return the steps that the leader takes by itself."""
    bounds = model.bounds
    if replica.end < bounds.end:
        after = advanced(model, broker, replica._replace(log=(*replica.log, replica.epoch)))
        yield (("append", broker), *model.with_replica(state, broker, after))
    if bounds.deletes and replica.start < replica.high_watermark:
        after = replica._replace(start=replica.start + 1, log=replica.log[1:])
        deleted = state._replace(deleted=max(state.deleted, after.start))
        yield (("delete records", broker), *model.with_replica(deleted, broker, after))
    if lead.pending is None or not model.rules.one_proposal_at_a_time:
        yield from _propose(model, state, broker, replica, lead)
    if lead.pending is not None:
        yield _settle(model, state, broker, replica)


# The high watermark


def advanced(model: Model, broker: int, replica: Replica) -> Replica:
    """Return a leader with the high watermark that follows from the progress of the maximal ISR."""
    lead = replica.lead
    if lead is None:
        return replica
    rules, min_isr = model.rules, model.bounds.min_isr
    maximal = lead.isr
    if lead.pending is not None and rules.expansion_counts_while_pending:
        maximal |= lead.pending.isr
    if min_isr > 1 and rules.high_watermark_freezes:
        counted = lead.isr
        if lead.pending is not None and not rules.freeze_counts_committed_isr:
            counted |= lead.pending.isr
        if counted.bit_count() < min_isr:
            return replica
    least = replica.synced if replica.syncs and rules.leader_counts_what_is_synced else replica.end
    ends = lead.ends
    for member in MEMBERS[maximal]:
        if member != broker and ends[member] < least:
            least = ends[member]
    if least <= replica.high_watermark:
        return replica
    return replica._replace(high_watermark=least)


# Proposals of another ISR


def eligible(isr: int, elr: int, new_isr: int, min_isr: int) -> int:
    """Return the ELR that follows when the ISR changes (KIP-966)."""
    if new_isr.bit_count() >= min_isr:
        return 0
    return (isr | elr) & ~new_isr


def _propose(
    model: Model, state: State, broker: int, replica: Replica, lead: Lead
) -> Iterator[Step]:
    rules = model.rules
    if lead.version >= model.bounds.versions:
        return
    for other in state.metadata.replicas:
        if other == broker:
            continue
        bit, end = 1 << other, lead.ends[other]
        if lead.isr & bit:
            yield _proposal(model, state, ("shrink", broker, other), replica, lead.isr & ~bit)
        elif (
            end != UNKNOWN
            and (end >= replica.high_watermark or not rules.expansion_reaches_high_watermark)
            and (lead.starts[other] >= replica.start or not rules.expansion_reaches_log_start)
            and (end >= lead.epoch_start or not rules.expansion_reaches_epoch_start)
        ):
            yield _proposal(model, state, ("expand", broker, other), replica, lead.isr | bit)


def _proposal(model: Model, state: State, label: Label, replica: Replica, isr: int) -> Step:
    rules, lead = model.rules, replica.lead
    assert lead is not None, "a leader proposes"
    broker, other = label[1:]
    elr = eligible(lead.isr, lead.elr, isr, model.bounds.min_isr)
    checked: tuple[tuple[int, int], ...] = ()
    if rules.proposal_checks_own_registration:
        checked = ((broker, replica.broker_epoch),)
    if isr >> other & 1 and rules.expansion_checks_registration:
        checked = (*checked, (other, lead.broker_epochs[other]))
    epoch = replica.epoch
    if not rules.isr_change_stores_present_epoch and state.metadata.version:
        epoch = state.metadata.stored.epoch
    version = lead.version if rules.proposal_checks_version else -1
    leadership = Leadership(broker, epoch, isr, elr, replica.broker_epoch)
    commit = Commit(broker, version, checked, leadership, ())
    if isr.bit_count() < lead.isr.bit_count() and not rules.shrink_counts_when_stored:
        lead = lead._replace(isr=isr)
    after = replica._replace(lead=lead._replace(pending=Pending(isr, elr, is_stored=False)))
    if is_possible(commit, state.metadata) and commit not in state.commits:
        state = state._replace(commits=tuple(sorted((*state.commits, commit), key=_order)))
    return (label, *model.with_replica(state, broker, advanced(model, broker, after)))


def _order(commit: Commit) -> tuple[object, ...]:
    return (commit.sender, commit.version, commit.checked, commit.state or (), commit.replicas)


def _settle(model: Model, state: State, broker: int, replica: Replica) -> Step:
    """The leader learns the outcome of its proposal, after it has made the proposal void if nothing is known."""
    lead = replica.lead
    assert lead is not None, "a leader proposes"
    pending = lead.pending
    assert pending is not None, "a proposal is in flight"
    if not model.rules.unknown_is_settled:  # the leader takes it for a refusal
        lead = lead._replace(pending=None)
    elif pending.is_stored:
        lead = lead._replace(
            version=lead.version + 1, isr=pending.isr, elr=pending.elr, pending=None
        )
    else:
        lead = lead._replace(pending=None)
        kept = tuple(
            each
            for each in state.commits
            if each.sender != broker
            or each.state is None
            or (each.state.isr, each.state.registration) != (pending.isr, replica.broker_epoch)
        )
        state = state._replace(commits=kept)
    after = advanced(model, broker, replica._replace(lead=lead))
    return (("settle", broker), *model.with_replica(state, broker, after))


# Fetches of followers


def requests(model: Model, state: State) -> Iterator[Step]:
    """Return the steps that handle requests in flight."""
    for follower, sent in enumerate(state.requests):
        for index, request in enumerate(sent):
            left = sent[:index] + sent[index + 1 :]
            after = state._replace(requests=changed(state.requests, follower, left))
            yield from fetched(model, after, ("handle fetch", follower, index), request)


def fetched(model: Model, state: State, label: Label, request: Request) -> Iterator[Step]:
    """Handle a fetch. A fetch that the leader refuses has no effect."""
    broker, follower = request.leader, label[1]
    leader = state.replicas[broker]
    lead = leader.lead
    if lead is None or follower not in state.metadata.replicas:
        return
    if leader.epoch != request.epoch and model.rules.fetch_checks_epoch:
        return
    if (
        request.broker_epoch < lead.broker_epochs[follower]
        and model.rules.fetch_checks_registration
    ):
        return
    epoch, end = end_offset_for(leader, request.last_epoch)
    diverges = model.rules.fetch_checks_divergence and (
        epoch < request.last_epoch or end < request.offset
    )
    if diverges or request.offset < leader.start:
        response = _response(model, leader, request, epoch if diverges else UNKNOWN, end)
        yield label, _answered(model, state, follower, response), ""
        return
    problem = checks.false_progress(
        leader,
        state.replicas[follower],
        request.offset,
        broker_epoch=request.broker_epoch,
        syncs=state.replicas[follower].marked,
    )
    lead = lead._replace(
        ends=changed(lead.ends, follower, request.offset),
        broker_epochs=changed(lead.broker_epochs, follower, request.broker_epoch),
        starts=changed(lead.starts, follower, request.start),
    )
    leader = advanced(model, broker, leader._replace(lead=lead))
    state, wrong = model.with_replica(state, broker, leader)
    response = _response(model, leader, request, UNKNOWN, UNKNOWN)
    yield label, _answered(model, state, follower, response), wrong or problem


def _answered(model: Model, state: State, follower: int, response: Response) -> State:
    sent = in_flight(state.responses[follower], response, model.bounds.in_flight)
    return state._replace(responses=changed(state.responses, follower, sent))


def in_flight(sent: tuple[T, ...], message: T, most: int) -> tuple[T, ...]:
    """Return the messages in flight after another one was sent. The oldest one is lost if there are too many."""
    if message in sent:
        return sent
    return (*sent, message)[-most:]


def end_offset_for(leader: Replica, epoch: int) -> tuple[int, int]:
    """Return the largest epoch of the leader up to `epoch`, and the offset after its last record.

    `LeaderEpochCache.end_offset_for` does the same.
    """
    if epoch == UNKNOWN:
        return UNKNOWN, leader.end
    index = 0
    for record in leader.log:
        if record > epoch:
            break
        index += 1
    if index == len(leader.log) and epoch == leader.epoch:
        return epoch, leader.end
    return (leader.log[index - 1] if index else epoch), leader.start + index


def _response(
    model: Model, leader: Replica, request: Request, diverging_epoch: int, diverging_end: int
) -> Response:
    records: tuple[int, ...] = ()
    if diverging_epoch == UNKNOWN and request.offset >= leader.start:
        records = leader.log[request.offset - leader.start :]
        if model.bounds.one_by_one:
            records = records[:1]
    return Response(
        request.epoch,
        request.offset,
        request.last_epoch,
        diverging_epoch,
        diverging_end if diverging_epoch != UNKNOWN else UNKNOWN,
        records,
        leader.high_watermark,
        leader.start,
    )
