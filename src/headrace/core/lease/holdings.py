"""The leases that a member holds: how they are kept, and all the ways in which they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from headrace.core.lease.actions import (
    UNKNOWN,
    Action,
    Assigned,
    Drain,
    Give,
    ListedShard,
    Renew,
    Restart,
    Revoked,
    Unknown,
    Why,
)
from headrace.core.lease.checkpoint import SHARD_END, Checkpoint
from headrace.core.lease.holding import HeldLease, Phase
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings


class Holdings:
    """Leases by key. A lease that goes is reported with `Revoked`, exactly once after its `Assigned`."""

    def __init__(self, settings: LeaseSettings, retry_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._retry_ms = retry_ms
        self._held: dict[LeaseKey, HeldLease] = {}

    def __contains__(self, key: LeaseKey) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(list(self._held.values()))

    def get(self, key: LeaseKey) -> HeldLease | None:
        """Return a lease that is held."""
        return self._held.get(key)

    def due_ms(self) -> int | None:
        """Return when `step` has something to do."""
        dues = [held.due_ms(self._settings) for held in self._held.values()]
        return min(dues, default=None)

    # How a lease comes and is kept

    def take(self, lease: Lease, sent_ms: int, now_ms: int, *, closing: bool) -> list[Action]:
        """Hold a lease that was taken; a member that is being closed gives it back unread."""
        held = HeldLease.taken(lease, sent_ms, now_ms, self._settings)
        if now_ms >= held.deadline_ms:
            return []  # the answer came too late: it is taken again when a scan finds it
        self._held[lease.key] = held
        if not closing:
            return [Assigned(lease)]
        held.phase, held.why, held.is_told = Phase.GIVING, Why.SHUTDOWN, True
        return self.step(held, now_ms)

    def step(self, held: HeldLease, now_ms: int) -> list[Action]:
        """Do what is due for a lease."""
        if self._held.get(held.lease.key) is not held:
            return []
        if now_ms >= held.deadline_ms:
            return self._end(held, Why.LOST)
        actions = self._watch(held, now_ms)
        if held.is_drained_by(now_ms):
            held.phase = Phase.GIVING
            actions += _tell(held, held.why)  # before anybody else can have it
        write = held.write(now_ms, self._settings)
        return [*actions, write] if write is not None else actions

    def on_renewed(
        self, request: Renew, sent_ms: int, now_ms: int, outcome: Lease | Unknown | None
    ) -> list[Action]:
        """Take the answer of a renewal or checkpoint."""
        held = self._of(request)
        if held is None:
            return []
        if outcome is None:
            return self._end(held, Why.LOST)
        if outcome is not UNKNOWN and outcome.beat != request.beat:
            # Somebody else has raised the beat: this was not written, and is to be sent with a higher one.
            held.beat, outcome = max(held.beat, outcome.beat), UNKNOWN
        if outcome is UNKNOWN:
            held.is_unanswered(now_ms + self._retry_ms())
            return self.step(held, now_ms)
        held.renewed(outcome, sent_ms, self._settings)
        return self.on_asked(held, outcome.next_owner, now_ms) + self.step(held, now_ms)

    def on_asked(self, held: HeldLease, asker: str | None, now_ms: int) -> list[Action]:
        """Take that another member asks for a lease: it changes nothing but that the shard is drained."""
        if asker is None or held.lease.owner == asker:
            return []
        held.lease = replace(held.lease, next_owner=asker)
        if held.phase is not Phase.READING:
            return []
        settings = self._settings
        by_ms = now_ms + settings.handover_timeout_ms if settings.handover_forced else None
        return _drain(held, Why.HANDOVER, by_ms)

    def on_seen(self, lease: Lease, now_ms: int) -> list[Action]:
        """Take what a scan has found of a lease, if it is held; it may be older than what is known."""
        held = self._held.get(lease.key)
        if held is None:
            return []
        if lease.epoch > held.lease.epoch:
            return self._end(held, Why.LOST)
        if lease.epoch < held.lease.epoch:
            return []
        return self.on_asked(held, lease.next_owner, now_ms)

    # What readers say

    def advance(
        self, key: LeaseKey, checkpoint: Checkpoint, now_ms: int, *, in_flight: bool
    ) -> list[Action]:
        """Take how far a shard is finished."""
        held = self._held.get(key)
        if held is None or held.phase not in {Phase.READING, Phase.DRAINING}:
            return []
        held.advance(checkpoint, now_ms, self._settings, in_flight=in_flight)
        return self.step(held, now_ms)

    def progressed(self, key: LeaseKey, now_ms: int, size_bytes: int) -> None:
        """Take note of a completed fetch."""
        held = self._held.get(key)
        if held is not None:
            held.progressed(now_ms, size_bytes)

    def on_drained(self, key: LeaseKey, now_ms: int, checkpoint: Checkpoint | None) -> list[Action]:
        """Take that a shard has finished what it had begun."""
        held = self._held.get(key)
        if held is None or held.phase is not Phase.DRAINING:
            return []
        if checkpoint is not None:
            held.advance(checkpoint, now_ms, self._settings, in_flight=False)
        held.phase = Phase.GIVING
        return self.step(held, now_ms)

    def on_ended(self, key: LeaseKey, children: Sequence[ListedShard], now_ms: int) -> bool:
        """Take that the last record of a closed shard is finished; return whether it was this member's."""
        held = self._held.get(key)
        if held is None or not held.is_valid(now_ms):
            return False
        held.phase, held.why = Phase.ENDING, Why.ENDED
        held.children, held.ended_ms = children, now_ms
        return True

    # How a lease goes

    def drain(self, now_ms: int) -> list[Action]:
        """Let go of everything."""
        actions: list[Action] = []
        by_ms = now_ms + self._settings.drain_timeout_ms
        for held in self:
            if held.phase is Phase.READING:
                actions += _drain(held, Why.SHUTDOWN, by_ms)
            elif held.phase is Phase.DRAINING and held.drained_by_ms is None:
                held.drained_by_ms = by_ms
        return actions

    def finish(self, held: HeldLease) -> None:
        """Take that the children of a shard that has ended have their leases."""
        held.finished = SHARD_END
        held.phase = Phase.GIVING

    def on_given(
        self,
        request: Give,
        now_ms: int,
        outcome: bool | Unknown,  # noqa: FBT001 - it is what a store answers
    ) -> tuple[list[Action], Lease | None]:
        """Take the answer of a lease that was given away; return what it is now, too, where that is known."""
        held = self._of(request)
        if held is None:
            return [], None
        if outcome is UNKNOWN:
            held.is_unanswered(now_ms + self._retry_ms())
            return self.step(held, now_ms), None
        if not outcome:
            return self._end(held, Why.LOST), None
        given = replace(
            held.lease,
            owner=None,
            epoch=request.epoch + 1,
            checkpoint=request.checkpoint or held.lease.checkpoint,
            next_owner=request.to,
        )
        return self._end(held, held.why), given

    def _of(self, request: Renew | Give) -> HeldLease | None:
        held = self._held.get(request.key)
        return held if held is not None and held.lease.epoch == request.epoch else None

    def _end(self, held: HeldLease, why: Why) -> list[Action]:
        del self._held[held.lease.key]
        return _tell(held, why)

    def _watch(self, held: HeldLease, now_ms: int) -> list[Action]:
        """Notice that nothing was fetched for long."""
        stalled_ms = held.stalled_ms(self._settings)
        if stalled_ms is None or now_ms < stalled_ms:
            return []
        held.progressed_ms = now_ms
        if held.is_restarted:
            return _drain(held, Why.STALLED, now_ms + self._settings.handover_timeout_ms)
        held.is_restarted = True
        return [Restart(held.lease.key)]


def _drain(held: HeldLease, why: Why, by_ms: int | None) -> list[Action]:
    held.phase, held.why, held.drained_by_ms = Phase.DRAINING, why, by_ms
    return [Drain(held.lease.key, why, by_ms)]


def _tell(held: HeldLease, why: Why) -> list[Action]:
    if held.is_told:
        return []
    held.is_told = True
    return [Revoked(held.lease.key, why)]
