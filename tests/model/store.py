"""The metadata store and the controllers: commits arrive; leaders are elected; replicas are reassigned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.leading import eligible
from tests.model.state import (
    MEMBERS,
    NOBODY,
    Commit,
    Leadership,
    Metadata,
    Replica,
    State,
    changed,
    mask,
    present,
)

if TYPE_CHECKING:
    from tests.model.model import Label, Model, Step


def steps(model: Model, state: State) -> Iterator[Step]:
    """Return the steps of the store and of the controllers."""
    for index, commit in enumerate(state.commits):
        yield _arrives(model, state, ("commit", index), commit)
    newest = present(state.metadata)
    if state.metadata.version < model.bounds.versions and newest.epoch < model.bounds.epochs:
        for controller in range(model.bounds.controllers):
            yield from _elect(model, state, controller, newest)
            if model.bounds.reassigns:
                yield from _reassign(model, state, controller, newest)


def _arrives(model: Model, state: State, label: Label, commit: Commit) -> Step:
    """A commit in flight arrives. Commits whose checks do not hold were removed before."""
    index, metadata = label[1], state.metadata
    commits = state.commits[:index] + state.commits[index + 1 :]
    replicas = commit.replicas or metadata.replicas
    if commit.state is None:
        after = metadata._replace(replicas=replicas)
    else:
        after = Metadata(metadata.version + 1, commit.state, replicas, metadata.registrations)
        if commit.sender >= 0:
            state = state._replace(replicas=_noted(state.replicas, commit, commit.state))
    return label, model.with_metadata(state._replace(commits=commits), after), ""


def _noted(
    replicas: tuple[Replica, ...], commit: Commit, stored: Leadership
) -> tuple[Replica, ...]:
    """Note at the leader that its proposal is stored. The leader learns it later."""
    replica = replicas[commit.sender]
    lead = replica.lead
    if (
        lead is None
        or lead.pending is None
        or replica.broker_epoch != stored.registration
        or (lead.pending.isr, lead.pending.elr) != (stored.isr, stored.elr)
    ):
        return replicas
    lead = lead._replace(pending=lead.pending._replace(is_stored=True))
    return changed(replicas, commit.sender, replica._replace(lead=lead))


def _sent(state: State, label: Label, commit: Commit) -> Step:
    """A controller sends a commit. It gives up its last one, which never arrives."""
    kept = tuple(each for each in state.commits if each.sender != commit.sender)
    commits = tuple(sorted((*kept, commit), key=lambda each: (each.sender, each.version)))
    return label, state._replace(commits=commits), ""


def _elect(model: Model, state: State, controller: int, newest: Leadership) -> Iterator[Step]:
    rules, metadata = model.rules, state.metadata
    candidates = newest.isr | newest.elr if rules.elects_from_isr else mask(metadata.replicas)
    epoch = newest.epoch
    if not rules.election_epoch_is_above_present and metadata.version:
        epoch = metadata.stored.epoch
    checked = _registration_of(model, metadata, newest)
    version = metadata.version if rules.election_checks_version else -1
    for leader in MEMBERS[candidates]:
        bit = 1 << leader
        isr = newest.isr | bit if newest.isr & bit else bit
        for in_sync in {bit, isr, (isr & ~_bit(newest.leader)) | bit}:
            elr = eligible(newest.isr, newest.elr, in_sync, model.bounds.min_isr)
            registration = metadata.registrations[leader]
            elected = Leadership(leader, epoch + 1, in_sync, elr, registration)
            commit = Commit(-1 - controller, version, checked, elected, ())
            yield _sent(state, ("elect", controller, leader, in_sync), commit)


def _bit(leader: int) -> int:
    return 1 << leader if leader >= 0 else 0


def _registration_of(
    model: Model, metadata: Metadata, newest: Leadership
) -> tuple[tuple[int, int], ...]:
    if newest.leader == NOBODY or not model.rules.election_checks_registration:
        return ()
    return ((newest.leader, metadata.registrations[newest.leader]),)


def _reassign(model: Model, state: State, controller: int, newest: Leadership) -> Iterator[Step]:
    """A replica is added; or one that is not the leader is removed, together with its membership in ISR and ELR."""
    metadata, rules = state.metadata, model.rules
    checked = _registration_of(model, metadata, newest)
    version = metadata.version if rules.reassignment_checks_version else -1
    for broker in range(model.bounds.brokers):
        sender = -1 - controller
        if broker not in metadata.replicas:
            replicas = (*metadata.replicas, broker)
            stored: Leadership | None = newest
            if metadata.version or not rules.reassignment_stores_state:
                stored = None
            commit = Commit(sender, version, checked, stored, replicas)
            yield _sent(state, ("add replica", controller, broker), commit)
        elif newest.leader not in (broker, NOBODY):
            bit = 1 << broker
            if newest.isr & ~bit:
                replicas = tuple(each for each in metadata.replicas if each != broker)
                left = newest._replace(
                    epoch=newest.epoch + 1, isr=newest.isr & ~bit, elr=newest.elr & ~bit
                )
                commit = Commit(sender, version, checked, left, replicas)
                yield _sent(state, ("remove replica", controller, broker), commit)
