"""A lease that this member owns: its deadline, the writes that are due, and how the lease ends."""

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
    """The shard is closed and all its records are finished. The leases of its children are created."""
    GIVING = auto()
    """No record is handled any more. The lease is transferred or released."""


@dataclass(slots=True)
class HeldLease:
    """A lease that this member owns until `deadline_ms`. All times are in ms of the member's clock."""

    lease: Lease
    deadline_ms: int
    """The end of the lease unless a renewal succeeds. It counts from the send time of the last successful renewal."""
    finished: Checkpoint
    """The position up to which all records are finished."""
    renew_ms: int
    """The time of the next renewal."""
    write_ms: int
    """The earliest time of the next write. It is in the future after the store did not answer."""
    checkpoint_ms: int
    """The earliest time of the next checkpoint; half of `checkpoint_ms` earlier if `is_quiet`."""
    patient_ms: int
    """The time until which a checkpoint waits for records that were begun together with the first finished one."""
    progressed_ms: int
    """The time of the last completed fetch."""
    rated_ms: int
    """The time up to which `bytes_per_s` includes the bytes that were read."""
    beat: int
    """The number of the last write that was sent."""
    phase: Phase = Phase.READING
    why: Why = Why.LOST
    """The reason for the end of the lease, from `DRAINING` on."""
    drained_by_ms: int | None = None
    """The time limit of draining; None if draining has no limit."""
    is_quiet: bool = False
    """Whether every record that was begun is finished: then a checkpoint now leaves no record to be repeated."""
    is_busy: bool = False
    """Whether a write is in flight. There is never a second one."""
    is_reported: bool = False
    """Whether the readers of the shard were notified of the end of the lease."""
    is_restarted: bool = False
    """Whether the shard's reader was restarted since the last completed fetch."""
    children: Sequence[ListedShard] = ()
    """The children of a closed shard."""
    ended_ms: int = 0
    """The time at which the shard was found closed."""
    retry_ms: int | None = None
    """The time of the next attempt to create the leases of the children; None if none is due."""
    bytes: int = 0
    """Bytes read since `rated_ms`."""
    bytes_per_s: float | None = None
    """The average rate of reading; None before the first reported fetch."""

    @classmethod
    def taken(cls, lease: Lease, sent_ms: int, now_ms: int, settings: LeaseSettings) -> HeldLease:
        """Return the owned lease that follows a successful take.

        Args:
            lease: The lease as it was written.
            sent_ms: The time at which the write was sent.
            now_ms: The present time.
            settings: The settings of the member.
        """
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
            # An earlier attempt to take the lease may arrive late and raise the beat by one.
            beat=lease.beat + 1,
        )

    def is_valid(self, now_ms: int) -> bool:
        """Whether the member may handle records of the shard now."""
        return now_ms < self.deadline_ms and self.phase in {Phase.READING, Phase.DRAINING}

    def advance(
        self, checkpoint: Checkpoint, now_ms: int, settings: LeaseSettings, *, in_flight: bool
    ) -> None:
        """Move `finished` forward to a checkpoint; an older checkpoint changes nothing.

        Args:
            checkpoint: The position up to which all records are finished.
            now_ms: The present time.
            settings: The settings of the member.
            in_flight: Whether further records of the shard are begun and not finished.
        """
        if self.finished.is_before(checkpoint):
            if not self.has_news:
                self.patient_ms = now_ms + settings.checkpoint_ms // 2
            self.finished = checkpoint
        self.is_quiet = not in_flight

    @property
    def has_news(self) -> bool:
        """Whether `finished` is beyond the stored checkpoint."""
        return self.lease.checkpoint.is_before(self.finished)

    def due_ms(self, settings: LeaseSettings) -> int:
        """Return the time of the next action for this lease."""
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
        """Whether the time limit of draining has passed."""
        return (
            self.phase is Phase.DRAINING
            and self.drained_by_ms is not None
            and now_ms >= self.drained_by_ms
        )

    def stalled_ms(self, settings: LeaseSettings) -> int | None:
        """Return the time at which the reader counts as stalled; None if stalls are not detected now."""
        if settings.stalled_ms is None or self.phase is not Phase.READING:
            return None
        return self.progressed_ms + settings.stalled_ms

    def progressed(self, now_ms: int, size_bytes: int) -> None:
        """Record a completed fetch of a number of bytes."""
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
        """Return the write that is due, and mark it as in flight; None if no write is due."""
        if self.is_busy or now_ms < self._write_due_ms(settings):
            return None
        self.is_busy = True
        if self.phase is Phase.GIVING:
            to = None if self.why is Why.ENDED else self.lease.next_owner
            return Give(self.lease.key, self.lease.epoch, to, self.finished)
        self._average(now_ms, settings)
        checkpoint = self.finished if self.has_news else None
        if checkpoint is not None:  # after an early checkpoint the next one waits longer
            self.checkpoint_ms = max(self.checkpoint_ms, now_ms) + settings.checkpoint_ms
        self.beat += 1
        return Renew(self.lease.key, self.lease.epoch, self.beat, checkpoint, self.bytes_per_s)

    def renewed(self, lease: Lease, sent_ms: int, settings: LeaseSettings) -> None:
        """Record a successful renewal that was sent at `sent_ms`."""
        self.is_busy = False
        self.lease = lease
        self.deadline_ms = max(
            self.deadline_ms, sent_ms + settings.duration_ms - settings.margin_ms
        )
        self.renew_ms = sent_ms + settings.renew_ms

    def is_unanswered(self, retry_ms: int) -> None:
        """Record that the store did not answer. Until `deadline_ms` the member may still own the lease."""
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
