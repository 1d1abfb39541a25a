"""The progress of the replicas of a partition, as its leader knows it, and the high watermark that follows.

The progress of a replica is the end of what the replica can promise: the synced offset if records are synced before
they are acknowledged, otherwise the log end offset. A follower reports its progress with each fetch.

The high watermark is the least progress over the maximal ISR. The maximal ISR has all in-sync replicas of the newest
state, and all replicas that the leader has proposed to add. Until a proposal is decided, the replicas of both states
count. Otherwise another broker could become the leader without a record below the high watermark.

`headrace.core.replica.isr` says which replicas count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ALL_IN_SYNC: Final = -1
"""The `acks` of a request that waits until its records are committed: the high watermark has passed them."""
UNKNOWN: Final = -1
"""The progress of a replica that has not fetched in this leader epoch."""


def own_progress(log_end_offset: int, synced_offset: int, *, syncs_first: bool) -> int:
    """Return the progress of the leader's own replica.

    Args:
        log_end_offset: The log end offset.
        synced_offset: The end of what is on stable storage.
        syncs_first: Whether records are synced before they are acknowledged.
    """
    return synced_offset if syncs_first else log_end_offset


class Progress:
    """The progress of all replicas of a partition in one leader epoch. The leader's own progress is an argument."""

    __slots__ = ("_broker_id", "_ends", "is_frozen", "isr", "maximal_isr")

    def __init__(self, broker_id: int, isr: Iterable[int]) -> None:
        """Begin a leader epoch: the progress of the other replicas is unknown."""
        self._broker_id = broker_id
        self._ends: dict[int, int] = {}
        self.isr = frozenset(isr)
        """The broker ids of the in-sync replicas of the newest state."""
        self.maximal_isr = self.isr
        """The broker ids of the maximal ISR."""
        self.is_frozen = False
        """Whether the high watermark does not move: the ISR is too small, or a replica outside of it may lead."""

    def report(self, replica: int, end_offset: int) -> None:
        """Note the progress of another replica. It decreases if the replica has lost the end of its log."""
        self._ends[replica] = end_offset

    def _of(self, replica: int, own: int) -> int:
        return own if replica == self._broker_id else self._ends.get(replica, UNKNOWN)

    def high_watermark(self, own: int, *, present: int, log_end_offset: int) -> int:
        """Return the high watermark. It never decreases, and never exceeds the leader's log end offset.

        Args:
            own: The progress of the leader's own replica.
            present: The present high watermark.
            log_end_offset: The leader's log end offset.
        """
        if self.is_frozen:
            return present
        least = min((self._of(replica, own) for replica in self.maximal_isr), default=own)
        return max(present, min(least, log_end_offset))

    def acknowledged_end(self, acks: int, own: int, high_watermark: int) -> int:
        """Return the offset below which records are acknowledged to requests with these `acks`.

        Args:
            acks: 1 for the leader's own replica; a higher number for as many in-sync replicas, whichever they are; -1
                for all in-sync replicas, that is for the high watermark.
            own: The progress of the leader's own replica.
            high_watermark: The present high watermark.
        """
        if acks == ALL_IN_SYNC:
            return high_watermark
        if acks == 1:
            return own
        ends = sorted((self._of(replica, own) for replica in self.isr), reverse=True)
        return ends[acks - 1] if acks <= len(ends) else UNKNOWN
