"""The role that a broker takes from the newest state of its partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model import checks
from tests.model.leading import advanced
from tests.model.state import (
    NOBODY,
    UNKNOWN,
    Lead,
    Leadership,
    Replica,
    State,
    changed,
    present,
    present_of,
)

if TYPE_CHECKING:
    from tests.model.model import Label, Model, Step


def steps(model: Model, state: State, broker: int, replica: Replica) -> Iterator[Step]:
    """The broker reads the newest state. States in between are skipped."""
    metadata = state.metadata
    if replica.seen is not None:
        seen, stale = (metadata.version, metadata.stored), replica.seen
        if stale != seen:  # the broker's registration has arrived, but the state before it has not
            leadership = present_of(*stale, metadata)
            label: Label = ("see registration", broker)
            yield from _apply(model, state, label, replica, (stale[0], leadership))
        replica = replica._replace(seen=seen)
    known = metadata.version, present(metadata)
    yield from _apply(model, state, ("see state", broker), replica, known)


def _apply(
    model: Model,
    state: State,
    label: Label,
    replica: Replica,
    known: tuple[int, Leadership],
) -> Iterator[Step]:
    """Apply the version and the leadership that the broker knows now."""
    broker, (version, newest) = label[1], known
    if broker not in state.metadata.replicas:
        yield from _deleted(state, label, replica)
        return
    leads = newest.leader == broker and newest.registration == replica.broker_epoch
    if newest.epoch > replica.epoch:
        if leads:
            yield _lead(model, state, label, replica, known)
            return
        leader = NOBODY if newest.leader == broker else newest.leader
        after = replica._replace(leader=leader, epoch=newest.epoch, lead=None)
        if leader != NOBODY and not model.rules.truncates_by_epoch:
            after = _truncated_to_high_watermark(after)
        yield _follow(state, label, after)
    elif newest.epoch == replica.epoch and leads and replica.lead is not None:
        lead = replica.lead
        is_new = (lead.version, lead.isr, lead.elr) != (version, newest.isr, newest.elr)
        if lead.pending is None and is_new:
            lead = lead._replace(version=version, isr=newest.isr, elr=newest.elr)
            after = advanced(model, broker, replica._replace(lead=lead))
            yield (label, *model.with_replica(state, broker, after))


def _lead(
    model: Model, state: State, label: Label, replica: Replica, known: tuple[int, Leadership]
) -> Step:
    broker, count, (version, newest) = label[1], model.bounds.brokers, known
    ends = (UNKNOWN,) * count
    if replica.lead is not None and not model.rules.progress_ends_with_epoch:
        ends = replica.lead.ends
    lead = Lead(
        version, newest.isr, newest.elr, None, ends, (0,) * count, (0,) * count, replica.end
    )
    after = replica._replace(leader=broker, epoch=newest.epoch, lead=lead)
    problem = checks.lost_at_activation(state, broker, after) or checks.led_twice(
        state, broker, newest.epoch
    )
    after = advanced(model, broker, after)
    state, wrong = model.with_replica(
        state._replace(responses=changed(state.responses, broker, ())), broker, after
    )
    return label, state, problem or wrong


def _follow(state: State, label: Label, after: Replica) -> Step:
    broker = label[1]
    state = state._replace(replicas=changed(state.replicas, broker, after))
    if after.leader == NOBODY:
        state = state._replace(responses=changed(state.responses, broker, ()))
    return label, state, ""


def _truncated_to_high_watermark(replica: Replica) -> Replica:
    log = replica.log[: replica.high_watermark - replica.start]
    synced = min(replica.synced, replica.start + len(log))
    return replica._replace(log=log, synced=synced)


def _deleted(state: State, label: Label, replica: Replica) -> Iterator[Step]:
    """The broker deletes the files of a partition that was reassigned to others."""
    broker = label[1]
    after = replica._replace(
        leader=NOBODY, epoch=0, log=(), start=0, high_watermark=0, synced=0, lead=None
    )
    if after != replica:
        replicas = changed(state.replicas, broker, after)
        responses = changed(state.responses, broker, ())
        yield label, state._replace(replicas=replicas, responses=responses), ""
