"""Defences that can be switched off, to test that the invariants find each missing defence.

`docs/reports/simulation.md` lists where other defences are shown to be necessary. Two are checks that this simulation
passes without, because the store refuses the commits of a session that has ended: the check of the leader's own
registration in a change of the ISR, and the check of the controller epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from headrace.broker.cluster import control, unclean_start
from headrace.broker.cluster.member import Member
from headrace.broker.cluster.unclean_start import Departures
from headrace.broker.replication.isr_changes import IsrChanges
from headrace.core.cluster import controller, election
from headrace.core.cluster.election import without as state_without
from headrace.core.cluster.records import REGISTRATIONS, STATES, PartitionState
from headrace.core.replica import following
from headrace.core.replica.following import Following
from headrace.core.replica.isr import Isr
from tests.simulation.replicas import process, serving

_count = Isr._count
_change = IsrChanges._change
_commits_of = controller.commits_of


def _counts(which: Callable[[Isr], Any]) -> Callable[[Isr], None]:
    """Count another set of replicas for the high watermark."""

    def count(isr: Isr) -> None:
        _count(isr)
        isr.progress.maximal_isr = which(isr)

    return count


def _never_frozen(isr: Isr) -> None:
    _count(isr)
    isr.progress.is_frozen = False


def _unchecked(is_left_out: Callable[[IsrChanges, str], bool]) -> Callable[..., Any]:
    """Leave checks out of the commits of leaders."""

    def change(changes: IsrChanges, partition: Any) -> Any:
        found = _change(changes, partition)
        if found is None:
            return None
        kept = [each for each in found.checks if not is_left_out(changes, each.key)]
        return found._replace(checks=kept)

    return change


def _own(changes: IsrChanges, key: str) -> bool:
    return key == f"{REGISTRATIONS}{changes._replicas.broker_id}"


def _of_joining(changes: IsrChanges, key: str) -> bool:
    return key.startswith(REGISTRATIONS) and not _own(changes, key)


def _uncontrolled(prefix: str) -> Callable[..., Any]:
    """Leave checks out of the commits of the controller."""

    def commits(*arguments: Any) -> Any:
        for commit in _commits_of(*arguments):
            checks = [each for each in commit.checks if not each.key.startswith(prefix)]
            yield commit._replace(checks=checks)

    return commits


def _joining(condition: Callable[[Isr, Any, Any], bool]) -> Callable[..., Any]:
    """Let replicas join that have all records below the high watermark, and for which a condition holds."""

    def joining(
        isr: Isr, live: Any, *, log_start_offset: int, high_watermark: int, **_lag: int
    ) -> Any:
        return {
            replica
            for replica, follower in isr._followers.items()
            if replica not in isr.committed.isr
            and replica in live
            and follower.end_offset >= high_watermark
            and follower.log_start_offset >= log_start_offset
            and condition(isr, follower, live[replica])
        }

    return joining


def _has_epoch_start(isr: Isr, follower: Any, _broker: Any) -> bool:
    return bool(follower.end_offset >= isr._epoch_start_offset)


def _is_newest(_isr: Isr, follower: Any, broker: Any) -> bool:
    return bool(follower.broker_epoch == broker.broker_epoch and not broker.is_draining)


def _obeys_late_divergence(self: Following, position: Any, fetched: Any, log: Any) -> Any:
    decision = _decide(self, position, fetched, log)
    if decision is None and fetched.diverging is not None:
        epoch, end_offset = fetched.diverging
        return following._truncation(epoch, end_offset, log)
    return decision


_decide = Following.decide


def _truncates_to_high_watermark(self: Following, log: Any) -> Any:
    if self._in_flight is None:
        log.truncate(log.high_watermark)
    return _begin(self, log)


_begin = Following.begin


def _logs_end(log_end_offset: int, _synced_offset: int, *, syncs_first: bool) -> int:
    del syncs_first
    return log_end_offset


def _forgets_at_once(member: Member, departing: Any) -> None:
    member._replicas.store.forget_losses()
    _leave(member, departing)


_leave = Member._leave


def _takes_for_rejected(isr: Isr, proposal: Any) -> None:
    isr.decided(proposal, accepted=False)


def _any_log_end(state: PartitionState) -> dict[int, tuple[int, int]]:
    return {each.broker: (0, 0) for each in state.last_known}


def _leaves_others(present: PartitionState, broker_id: int, log_end: Any) -> PartitionState:
    after = state_without(present, broker_id, log_end)
    known = [each for each in present.last_known if each.broker != broker_id]
    return replace(after, last_known=(*known, *filter(None, [log_end])))


def _follows_uncleanly(leader_epoch: int, *, syncs_first: bool, unclean_epoch: int) -> Following:
    del unclean_epoch
    return Following(leader_epoch, syncs_first=syncs_first)


DEFENCES: dict[str, list[Any]] = {
    "a replica that leaves counts until the change is stored": [
        patch.object(Isr, "_count", _counts(lambda isr: (isr.pending or isr.committed).isr))
    ],
    "a replica that joins counts from the proposal on": [
        patch.object(Isr, "_count", _counts(lambda isr: isr.committed.isr))
    ],
    "a change of the ISR checks the state": [
        patch.object(IsrChanges, "_change", _unchecked(lambda _, key: key.startswith(STATES)))
    ],
    "a replica joins with its newest registration": [
        patch.object(IsrChanges, "_change", _unchecked(_of_joining)),
        patch.object(IsrChanges, "_is_registered", lambda *_: True),
        patch.object(IsrChanges, "_membership_changed", lambda *_: None),
        patch.object(Isr, "_joining", _joining(_has_epoch_start)),
    ],
    "the high watermark freezes below the minimum": [patch.object(Isr, "_count", _never_frozen)],
    "logs are compared": [patch.object(serving, "find_divergence", lambda *_: None)],
    "a follower truncates by leader epoch": [
        patch.object(Following, "begin", _truncates_to_high_watermark)
    ],
    "late divergences are ignored": [patch.object(Following, "decide", _obeys_late_divergence)],
    "a follower reports what is synced": [
        patch.object(following, "own_progress", _logs_end),
        patch.object(Following, "is_ready", lambda *_: True),
    ],
    "a leader counts what is synced": [patch.object(process, "own_progress", _logs_end)],
    "a broker that has lost records leaves": [patch.object(Departures, "find", lambda *_: [])],
    "a broker leaves although its start was interrupted": [
        patch.object(Member, "_leave", _forgets_at_once)
    ],
    "an election checks the registration of the leader": [
        patch.object(control, "commits_of", _uncontrolled(REGISTRATIONS))
    ],
    "a replica joins when it has the start of the leader epoch": [
        patch.object(Isr, "_joining", _joining(_is_newest))
    ],
    "the next proposal waits for an unknown outcome": [
        patch.object(Isr, "unknown", _takes_for_rejected)
    ],
    "the newest log leads after power cuts of all replicas": [
        patch.object(election, "_log_ends", _any_log_end)
    ],
    "the last replica leaves with the end of its log": [
        patch.object(unclean_start, "without", _leaves_others)
    ],
    "a replica with lost records begins anew": [
        patch.object(process, "Following", _follows_uncleanly)
    ],
}


def without(defence: str) -> AbstractContextManager[object]:
    """Return a context manager that switches one defence off."""
    stack = ExitStack()
    for each in DEFENCES[defence]:
        stack.enter_context(each)
    return stack
