"""Faults of brokers: killed processes, lost sessions, power cuts that remove the end of the log; and their starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.state import (
    LEFT,
    MUST_LEAVE,
    NOBODY,
    RUNNING,
    UNCLEAN,
    Leadership,
    Metadata,
    Replica,
    State,
    changed,
    present,
)

if TYPE_CHECKING:
    from tests.model.model import Label, Model, Step


def steps(model: Model, state: State, broker: int, replica: Replica) -> Iterator[Step]:
    """Return the faults of a broker, and the steps of its start."""
    bounds = model.bounds
    if replica.phase != RUNNING:
        yield from _start(model, state, broker, replica)
        return
    if not _may_register(model, state, broker):
        return
    stopped = replica._replace(leader=NOBODY, epoch=0, lead=None)
    killed = stopped._replace(
        high_watermark=replica.start, syncs=state.syncs, marked=replica.marked and state.syncs
    )
    silent = state._replace(responses=changed(state.responses, broker, ()))
    yield _registered(model, silent, ("kill", broker), killed)
    if bounds.loses_session:
        yield _registered(model, state, ("lose session", broker), stopped)
    if state.power_cuts < bounds.power_cuts:
        silent = silent._replace(power_cuts=state.power_cuts + 1)
        least = max(replica.synced, replica.start)
        kept = replica.marked if model.rules.unclean_start_asks_mark else state.syncs
        for end in range(least, replica.end):
            label: Label = ("power cut", broker, end)
            cut = killed._replace(log=replica.log[: end - replica.start])
            if kept or not model.rules.unclean_start_leaves:
                yield _registered(model, silent, label, cut)
            elif model.rules.registers_before_leaving:
                yield _registered(model, silent, label, cut._replace(phase=MUST_LEAVE))
            else:
                cut = cut._replace(phase=UNCLEAN, broker_epoch=0)
                replicas = changed(silent.replicas, broker, cut)
                yield label, silent._replace(replicas=replicas), ""


def _may_register(model: Model, state: State, broker: int) -> bool:
    metadata, bounds = state.metadata, model.bounds
    if metadata.registrations[broker] >= bounds.broker_epochs:
        return False
    newest = present(metadata)
    return newest.leader != broker or newest.epoch < bounds.epochs


def _registered(model: Model, state: State, label: Label, replica: Replica) -> Step:
    """The broker registers: its broker epoch rises, and if it leads, a leader epoch begins."""
    broker, metadata = label[1], state.metadata
    broker_epoch = metadata.registrations[broker] + 1
    registrations = changed(metadata.registrations, broker, broker_epoch)
    replicas = changed(state.replicas, broker, replica._replace(broker_epoch=broker_epoch))
    state = state._replace(replicas=replicas)
    return label, model.with_metadata(state, metadata._replace(registrations=registrations)), ""


def _start(model: Model, state: State, broker: int, replica: Replica) -> Iterator[Step]:
    """A broker that has lost the end of its log leaves ISR and ELR, before or after it registers."""
    if replica.phase == LEFT:
        if _may_register(model, state, broker):
            yield _registered(model, state, ("register", broker), replica._replace(phase=RUNNING))
        return
    metadata = state.metadata
    newest, bit = present(metadata), 1 << broker
    phase = LEFT if replica.phase == UNCLEAN else RUNNING
    replicas = changed(state.replicas, broker, replica._replace(phase=phase))
    after = state._replace(replicas=replicas)
    label: Label = ("leave", broker)
    if newest.leader != broker and not (newest.isr | newest.elr) & bit:
        yield label, after, ""
    elif metadata.version < model.bounds.versions and newest.epoch < model.bounds.epochs:
        leader = NOBODY if newest.leader == broker else newest.leader
        begins = leader == NOBODY or model.rules.leaving_begins_epoch
        stored = Leadership(
            leader,
            newest.epoch + begins,
            newest.isr & ~bit,
            newest.elr & ~bit,
            metadata.registrations[leader] if leader != NOBODY else 0,
        )
        version = metadata.version + 1
        changed_metadata = Metadata(version, stored, metadata.replicas, metadata.registrations)
        yield label, model.with_metadata(after, changed_metadata), ""
