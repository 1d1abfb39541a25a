"""The leases that a member owns: how they are renewed, and every way in which they end."""

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
    """The owned leases by key. The end of a lease is reported with `Revoked`, exactly once after its `Assigned`."""

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
        """Return an owned lease, or None."""
        return self._held.get(key)

    def due_ms(self) -> int | None:
        """Return the earliest time at which `step` has something to do, or None."""
        dues = [held.due_ms(self._settings) for held in self._held.values()]
        return min(dues, default=None)

    # How a lease starts and is renewed

    def take(self, lease: Lease, sent_ms: int, now_ms: int, *, closing: bool) -> list[Action]:
        """Own a lease that was taken. A member that is being closed releases the lease unread."""
        held = HeldLease.taken(lease, sent_ms, now_ms, self._settings)
        if now_ms >= held.deadline_ms:
            return []  # the response came too late: the lease is taken again when a scan finds it
        self._held[lease.key] = held
        if not closing:
            return [Assigned(lease)]
        held.phase, held.why, held.is_reported = Phase.GIVING, Why.SHUTDOWN, True
        return self.step(held, now_ms)

    def step(self, held: HeldLease, now_ms: int) -> list[Action]:
        """Return the actions that are due for a lease."""
        if self._held.get(held.lease.key) is not held:
            return []
        if now_ms >= held.deadline_ms:
            return self._end(held, Why.LOST)
        actions = self._watch(held, now_ms)
        if held.is_drained_by(now_ms):
            held.phase = Phase.GIVING
            actions += _report_end(held, held.why)  # before another member can own the lease
        write = held.write(now_ms, self._settings)
        return [*actions, write] if write is not None else actions

    def on_renewed(
        self, request: Renew, sent_ms: int, now_ms: int, outcome: Lease | Unknown | None
    ) -> list[Action]:
        """Process the response to a renewal or checkpoint."""
        held = self._of(request)
        if held is None:
            return []
        if outcome is None:
            return self._end(held, Why.LOST)
        if outcome is not UNKNOWN and outcome.beat != request.beat:
            # Another program has raised the beat. This request was not executed: send it again with a higher beat.
            held.beat, outcome = max(held.beat, outcome.beat), UNKNOWN
        if outcome is UNKNOWN:
            held.is_unanswered(now_ms + self._retry_ms())
            return self.step(held, now_ms)
        held.renewed(outcome, sent_ms, self._settings)
        return self.on_asked(held, outcome.next_owner, now_ms) + self.step(held, now_ms)

    def on_asked(self, held: HeldLease, asker: str | None, now_ms: int) -> list[Action]:
        """Process that another member asks for a lease. The only effect is that the shard is drained."""
        if asker is None or held.lease.owner == asker:
            return []
        held.lease = replace(held.lease, next_owner=asker)
        if held.phase is not Phase.READING:
            return []
        settings = self._settings
        by_ms = now_ms + settings.handover_timeout_ms if settings.handover_forced else None
        return _drain(held, Why.HANDOVER, by_ms)

    def on_seen(self, lease: Lease, now_ms: int) -> list[Action]:
        """Process what a scan found of an owned lease. The scan may be older than this member's knowledge."""
        held = self._held.get(lease.key)
        if held is None:
            return []
        if lease.epoch > held.lease.epoch:
            return self._end(held, Why.LOST)
        if lease.epoch < held.lease.epoch:
            return []
        return self.on_asked(held, lease.next_owner, now_ms)

    # Reports of readers

    def advance(
        self, key: LeaseKey, checkpoint: Checkpoint, now_ms: int, *, in_flight: bool
    ) -> list[Action]:
        """Accept a checkpoint of a shard."""
        held = self._held.get(key)
        if held is None or held.phase not in {Phase.READING, Phase.DRAINING}:
            return []
        held.advance(checkpoint, now_ms, self._settings, in_flight=in_flight)
        return self.step(held, now_ms)

    def progressed(self, key: LeaseKey, now_ms: int, size_bytes: int) -> None:
        """Note a completed fetch."""
        held = self._held.get(key)
        if held is not None:
            held.progressed(now_ms, size_bytes)

    def on_drained(self, key: LeaseKey, now_ms: int, checkpoint: Checkpoint | None) -> list[Action]:
        """Process that all begun records of a shard are finished."""
        held = self._held.get(key)
        if held is None or held.phase is not Phase.DRAINING:
            return []
        if checkpoint is not None:
            held.advance(checkpoint, now_ms, self._settings, in_flight=False)
        held.phase = Phase.GIVING
        return self.step(held, now_ms)

    def on_ended(self, key: LeaseKey, children: Sequence[ListedShard], now_ms: int) -> bool:
        """Process that the last record of a closed shard is finished; return whether this member owned the shard."""
        held = self._held.get(key)
        if held is None or not held.is_valid(now_ms):
            return False
        held.phase, held.why = Phase.ENDING, Why.ENDED
        held.children, held.ended_ms = children, now_ms
        return True

    # How a lease ends

    def drain(self, now_ms: int) -> list[Action]:
        """Drain all shards, because the member is closed."""
        actions: list[Action] = []
        by_ms = now_ms + self._settings.drain_timeout_ms
        for held in self:
            if held.phase is Phase.READING:
                actions += _drain(held, Why.SHUTDOWN, by_ms)
            elif held.phase is Phase.DRAINING and held.drained_by_ms is None:
                held.drained_by_ms = by_ms
        return actions

    def finish(self, held: HeldLease) -> None:
        """Process that the leases of all children of a closed shard exist."""
        held.finished = SHARD_END
        held.phase = Phase.GIVING

    def on_given(
        self,
        request: Give,
        now_ms: int,
        outcome: bool | Unknown,  # noqa: FBT001 - the response of a store
    ) -> tuple[list[Action], Lease | None]:
        """Process the response to a release or transfer. Return actions, and the stored lease if it is known."""
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
        return _report_end(held, why)

    def _watch(self, held: HeldLease, now_ms: int) -> list[Action]:
        """Restart a reader that has not completed a fetch for long. If that has not helped, drain the shard."""
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


def _report_end(held: HeldLease, why: Why) -> list[Action]:
    if held.is_reported:
        return []
    held.is_reported = True
    return [Revoked(held.lease.key, why)]
