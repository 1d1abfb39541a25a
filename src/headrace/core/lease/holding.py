"""A lease that a member holds: how long, what of it has to be written, and how it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from headrace.core.lease.actions import Give, ListedShard, Renew, Why
from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease
from headrace.core.lease.settings import LeaseSettings


class Phase(Enum):
    """The phase of a lease that a member owns."""

    READING = auto()
    """Records are fetched and handled."""
    DRAINING = auto()
    """No further record is begun. Records that were begun are finished."""
    ENDING = auto()
    """All of a closed shard is finished; its children get their leases."""
    GIVING = auto()
    """Nothing is handled any more; the lease is given away."""


@dataclass(slots=True)
class HeldLease:
    """A lease that a member holds until `deadline_ms`."""

    lease: Lease
    deadline_ms: int
    """When it ends unless a renewal is answered; counted from before the last one that was answered was sent."""
    finished: Checkpoint
    renew_ms: int
    """When it is to be renewed."""
    write_ms: int
    """Before that nothing is written: the store did not answer."""
    checkpoint_ms: int
    """Before that no checkpoint is written, as there was one just now; at a quiet moment half of its time earlier."""
    patient_ms: int
    """Until then it is waited for what was begun with the first that is finished: it may be soon, too."""
    progressed_ms: int
    """When a fetch was completed last."""
    rated_ms: int
    """Up to when bytes are in the average."""
    beat: int
    """The number of the last write that was sent."""
    phase: Phase = Phase.READING
    why: Why = Why.LOST
    """The reason for the end of the lease, from `DRAINING` on."""
    drained_by_ms: int | None = None
    """When draining ends in any case, in milliseconds; None if it has no bound."""
    is_quiet: bool = False
    """Whether all is finished that was begun, so that a checkpoint just now leaves nothing to be handled again."""
    is_busy: bool = False
    """Whether a write is in flight. There is never a second one."""
    is_told: bool = False
    """Whether those who read the shard know already that it is over."""
    is_restarted: bool = False
    """Whether its reader was restarted since a fetch was completed."""
    children: Sequence[ListedShard] = ()
    ended_ms: int = 0
    retry_ms: int | None = None
    """When the leases of the children are created again, after the store did not answer."""
    bytes: int = 0
    bytes_per_s: float | None = None
    """None until a fetch was reported."""

    @classmethod
    def taken(cls, lease: Lease, sent_ms: int, now_ms: int, settings: LeaseSettings) -> HeldLease:
        """Return a lease that was taken just now."""
        return cls(
            lease,
            deadline_ms=sent_ms + settings.duration_ms - settings.margin_ms,
            finished=lease.checkpoint,
            renew_ms=sent_ms + settings.renew_ms,
            write_ms=now_ms,
            checkpoint_ms=now_ms,
            progressed_ms=now_ms,
            rated_ms=now_ms,
            patient_ms=now_ms,
            # An earlier attempt to take the lease may come late, and raise the beat by one.
            beat=lease.beat + 1,
        )

    def is_valid(self, now_ms: int) -> bool:
        """Whether records may be handled."""
        return now_ms < self.deadline_ms and self.phase in {Phase.READING, Phase.DRAINING}

    def advance(
        self, checkpoint: Checkpoint, now_ms: int, settings: LeaseSettings, *, in_flight: bool
    ) -> None:
        """Take how far the shard is finished; it never goes back."""
        if self.finished.is_before(checkpoint):
            if not self.has_news:
                self.patient_ms = now_ms + settings.checkpoint_ms // 2
            self.finished = checkpoint
        self.is_quiet = not in_flight

    @property
    def has_news(self) -> bool:
        """Whether more is finished than is known to be stored."""
        return self.lease.checkpoint.is_before(self.finished)

    def due_ms(self, settings: LeaseSettings) -> int:
        """Return when something is due."""
        due = self.deadline_ms
        if not self.is_busy:
            due = min(due, self._write_due_ms(settings))
        if self.phase is Phase.DRAINING and self.drained_by_ms is not None:
            due = min(due, self.drained_by_ms)
        if self.phase is Phase.ENDING and self.retry_ms is not None:
            due = min(due, self.retry_ms)
        stalled_ms = self.stalled_ms(settings)
        return due if stalled_ms is None else min(due, stalled_ms)

    def is_drained_by(self, now_ms: int) -> bool:
        """Whether the time to finish what was begun is over."""
        return (
            self.phase is Phase.DRAINING
            and self.drained_by_ms is not None
            and now_ms >= self.drained_by_ms
        )

    def stalled_ms(self, settings: LeaseSettings) -> int | None:
        """Return when it is too long since a fetch was completed."""
        if settings.stalled_ms is None or self.phase is not Phase.READING:
            return None
        return self.progressed_ms + settings.stalled_ms

    def progressed(self, now_ms: int, size_bytes: int) -> None:
        """Take note of a completed fetch."""
        self.progressed_ms = now_ms
        self.is_restarted = False
        if self.bytes_per_s is None:
            self.bytes_per_s, self.rated_ms = self.lease.bytes_per_s, now_ms
        self.bytes += size_bytes

    def _write_due_ms(self, settings: LeaseSettings) -> int:
        if self.phase is Phase.GIVING:
            return self.write_ms
        due_ms = self.renew_ms
        if self.has_news:
            early_ms = self.checkpoint_ms - settings.checkpoint_ms // 2
            late_ms = max(self.checkpoint_ms, self.patient_ms)
            due_ms = min(due_ms, early_ms if self.is_quiet else late_ms)
        return max(due_ms, self.write_ms)

    def write(self, now_ms: int, settings: LeaseSettings) -> Renew | Give | None:
        """Return the write that is due."""
        if self.is_busy or now_ms < self._write_due_ms(settings):
            return None
        self.is_busy = True
        if self.phase is Phase.GIVING:
            to = None if self.why is Why.ENDED else self.lease.next_owner
            return Give(self.lease.key, self.lease.epoch, to, self.finished)
        self._average(now_ms, settings)
        checkpoint = self.finished if self.has_news else None
        if checkpoint is not None:  # one that came early has the next one wait longer
            self.checkpoint_ms = max(self.checkpoint_ms, now_ms) + settings.checkpoint_ms
        self.beat += 1
        return Renew(self.lease.key, self.lease.epoch, self.beat, checkpoint, self.bytes_per_s)

    def renewed(self, lease: Lease, sent_ms: int, settings: LeaseSettings) -> None:
        """Take that a renewal was answered."""
        self.is_busy = False
        self.lease = lease
        self.deadline_ms = max(
            self.deadline_ms, sent_ms + settings.duration_ms - settings.margin_ms
        )
        self.renew_ms = sent_ms + settings.renew_ms

    def is_unanswered(self, retry_ms: int) -> None:
        """Take that the store did not answer: whether it is still held is not known before `deadline_ms`."""
        self.is_busy = False
        self.write_ms = retry_ms
        self.checkpoint_ms = min(self.checkpoint_ms, retry_ms)
        self.patient_ms = min(self.patient_ms, retry_ms)

    def _average(self, now_ms: int, settings: LeaseSettings) -> None:
        took_ms = now_ms - self.rated_ms
        if self.bytes_per_s is None or took_ms < 1000:
            return
        rate = self.bytes * 1000 / took_ms
        self.bytes_per_s += (rate - self.bytes_per_s) * took_ms / (took_ms + settings.rate_ms)
        self.bytes = 0
        self.rated_ms = now_ms
