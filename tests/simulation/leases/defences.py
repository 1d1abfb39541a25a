"""Patches that break one rule of leases each, to test that the runs find every broken rule."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from headrace.core.lease.actions import UNKNOWN, Give, Renew, Take
from headrace.core.lease.checkpoint import at_timestamp
from headrace.core.lease.deciding import Decider
from headrace.core.lease.holding import HeldLease, Phase
from headrace.core.lease.machine import LeaseCore
from headrace.core.lease.taking import LeaseDivision
from headrace.core.lease.view import StreamView
from headrace.kinesis.leases import writes
from tests.simulation.leases.store import Rows

_on_reply = LeaseCore.on_reply
_apply = Rows.apply
_write = HeldLease.write
_renewed = writes.renewed


def _from_the_reply(self: Any, request: Any, sent_ms: int, now_ms: int, *answer: Any) -> Any:
    counted_ms = now_ms if isinstance(request, Take | Renew) else sent_ms
    return _on_reply(self, request, counted_ms, now_ms, *answer)


def _no_answer_is_success(self: Any, request: Any, sent_ms: int, now_ms: int, *answer: Any) -> Any:
    outcome, wall_ms = answer
    held = self._holdings.get(request.key) if isinstance(request, Renew) else None
    if outcome is UNKNOWN and held is not None and held.lease.epoch == request.epoch:
        outcome = replace(held.lease, beat=request.beat)
    return _on_reply(self, request, sent_ms, now_ms, outcome, wall_ms)


def _any_owner(row: Any, _owner: str, _epoch: int, beat: int, **write: Any) -> Any:
    return _renewed(row, row.owner, row.epoch, max(beat, row.beat + 1), **write)


def _any_number(row: Any, owner: str, epoch: int, beat: int, **write: Any) -> Any:
    return _renewed(row, owner, epoch, max(beat, row.beat + 1), **write)


def _epoch_alone(row: Any, seen: Any, owner: str) -> Any:
    if row.epoch != seen.epoch:
        return None
    return replace(row, owner=owner, epoch=row.epoch + 1, beat=row.beat + 1, next_owner=None)


def _one_parent(self: Any, seen: Any) -> bool:
    lease = seen.lease
    return not lease.checkpoint.is_end and all(
        self._is_finished(parent, seen.first_ms) for parent in sorted(lease.parents)[:1]
    )


def _end_first(self: Any, held: Any, _now_ms: int) -> list[Any]:
    self._holdings.finish(held)
    return []


def _always_valid(self: Any, _now_ms: int) -> bool:
    return self.phase in {Phase.READING, Phase.DRAINING}


def _two_writes(self: Any, now_ms: int, settings: Any) -> Any:
    write = _write(self, now_ms, settings)
    return replace(write, checkpoint=None) if isinstance(write, Give) else write


def _as_it_was_seen(self: Any, request: Any, reply: Any) -> Any:
    lease = reply.outcome
    if lease is UNKNOWN or lease is None:
        return []
    old = replace(lease, checkpoint=request.seen.checkpoint)
    return self._holdings.take(old, reply.sent_ms, reply.now_ms, closing=self._is_closing)


_STAMPS: dict[Any, int] = {}
_SIMULATIONS: list[Any] = []


def _wall_ms(owner: str) -> int:
    member = next(member for member in _SIMULATIONS[-1].processes if member.name == owner)
    return int(member.wall_ms)


def _stamp(self: Any, request: Any, owner: str, *, is_ghost: bool) -> Any:
    outcome = _apply(self, request, owner, is_ghost=is_ghost)
    _SIMULATIONS[:] = [self._checker._log.__self__]
    if isinstance(request, Take | Renew) and outcome is not None:
        _STAMPS[request.key] = _wall_ms(owner)
    return outcome


def _by_the_wall(self: Any, seen: Any, now_ms: int) -> bool:
    if seen.lease.owner is None or seen.lease.owner == self._owner:
        return False
    mine_ms = _wall_ms(self._owner)
    written_ms = _STAMPS.get(seen.lease.key, mine_ms)
    return bool(mine_ms < written_ms + self._settings.duration_ms)


DEFENCES: dict[str, list[Any]] = {
    "the deadline is looked at before each record": [
        patch.object(HeldLease, "is_valid", _always_valid)
    ],
    "the deadline counts from before the request": [
        patch.object(LeaseCore, "on_reply", _from_the_reply)
    ],
    "a request without an answer proves nothing": [
        patch.object(LeaseCore, "on_reply", _no_answer_is_success)
    ],
    "a checkpoint is conditional on owner and epoch": [patch.object(writes, "renewed", _any_owner)],
    "a late checkpoint is recognised by its number": [patch.object(writes, "renewed", _any_number)],
    "a lease is taken only if its beat is as it was seen": [
        patch.object(writes, "taken", _epoch_alone)
    ],
    "a lease is free when it did not change for long enough by one's own clock": [
        patch.object(Rows, "apply", _stamp),
        patch.object(Decider, "_is_renewed", _by_the_wall),
    ],
    "both parents are finished before a child is read": [
        patch.object(StreamView, "is_readable", _one_parent)
    ],
    "children have leases before their parent is marked as finished": [
        patch.object(LeaseCore, "_give_way", _end_first)
    ],
    "LATEST is decided once": [
        patch.object(StreamView, "_latest", lambda self: at_timestamp(self._scanned_wall_ms)),
        patch.object(StreamView, "_is_younger_than_group", lambda *_: False),
    ],
    "the last checkpoint is written with the hand-over": [
        patch.object(HeldLease, "write", _two_writes)
    ],
    "a member with a bound has no more shards": [
        patch.object(Decider, "_vacancies", lambda _: None),
        patch.object(LeaseDivision, "missing", LeaseDivision.level),
    ],
    "reading begins where the lease is when it is taken": [
        patch.object(LeaseCore, "_on_taken", _as_it_was_seen)
    ],
}


def broken(rule: str) -> AbstractContextManager[Any]:
    """Return a context manager that breaks a rule."""
    _STAMPS.clear()
    stack = ExitStack()
    for change in DEFENCES[rule]:
        stack.enter_context(change)
    return stack
