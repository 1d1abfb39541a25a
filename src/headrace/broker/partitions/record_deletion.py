"""Waits until the live replicas of partitions have deleted the records that their leader has deleted.

The leader knows the log start offset of a follower from the fetches of the follower. The low watermark of a partition
is the least log start offset of its live replicas, the leader included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from headrace.broker.context import LatestTime
from headrace.broker.replication.partition import Partition
from headrace.broker.waiting.purgatory import Purgatory
from headrace.core.cluster.membership import Membership
from headrace.deferred import Deferred

CHECK_INTERVAL_MS: Final = 500
"""The time between two checks whether the replicas that have the records are still live, in milliseconds."""
LONGEST_WAIT_MS: Final = 300_000
"""The longest time for which a request waits, in milliseconds, whatever its timeout and even if its client is gone."""
T = TypeVar("T")


def low_watermark(partition: Partition, membership: Membership) -> int:
    """Return the least log start offset of the live replicas of a partition that this broker leads."""
    own = partition.log_start_offset
    return own if partition.isr is None else partition.isr.low_watermark(own, membership.live)


class DelayedDeletion(Generic[T]):
    """A request that waits until the live replicas of its partitions have the log start offset of the leader.

    The request does not wait for a partition that this broker leads no longer.
    """

    __slots__ = (
        "_behind",
        "_deadline_ms",
        "_membership",
        "_purgatory",
        "_respond",
        "_time",
        "deferred",
    )

    def __init__(
        self,
        membership: Membership,
        purgatory: Purgatory,
        time: LatestTime,
        respond: Callable[[], T],
    ) -> None:
        """Prepare a request.

        Args:
            membership: The live brokers.
            purgatory: Has the deadline.
            time: The time of the latest call of the broker.
            respond: Returns the response.
        """
        self._membership = membership
        self._purgatory = purgatory
        self._time = time
        self._respond = respond
        self._behind: dict[Partition, int] = {}
        """The partitions with followers that have not deleted the records, and the offsets below which they are."""
        self._deadline_ms = 0
        self.deferred: Deferred[T] = Deferred(self._forget)
        """The deferred response of the request."""

    def wait(self, partitions: Iterable[Partition], deadline_ms: int) -> bool:
        """Return whether the request has to wait for a partition.

        Args:
            partitions: Partitions that this broker leads.
            deadline_ms: The time until which to wait, in milliseconds.
        """
        offsets = {each: each.log_start_offset for each in partitions if each.isr is not None}
        self._behind = {
            each: offset for each, offset in offsets.items() if self._lags(each, offset)
        }
        self._deadline_ms = min(deadline_ms, self._time.now_ms + LONGEST_WAIT_MS)
        if not self._behind or deadline_ms <= self._time.now_ms:
            return False
        for partition in self._behind:
            partition.watchers[self] = None
        self._check_later()
        return True

    def _lags(self, partition: Partition, offset: int) -> bool:
        return not partition.refusal and low_watermark(partition, self._membership) < offset

    def _check_later(self) -> None:
        next_ms = min(self._deadline_ms, self._time.now_ms + CHECK_INTERVAL_MS)
        self._purgatory.add(self, next_ms)

    @property
    def partitions_count(self) -> int:
        """The number of partitions that the request watches."""
        return len(self._behind)

    def partition_changed(self, _partition: object) -> None:
        """Complete the request if no partition has a follower that has not deleted the records."""
        if not any(self._lags(*each) for each in self._behind.items()):
            self._complete()

    def expire(self) -> None:
        """Check whether the followers are still live. Complete the request at its deadline."""
        self.partition_changed(None)
        if self._behind and self._time.now_ms >= self._deadline_ms:
            self._complete()
        elif self._behind:
            self._check_later()

    def _complete(self) -> None:
        self._forget()
        self._purgatory.complete(self, lambda: self.deferred.resolve(self._respond()))

    def _forget(self) -> None:
        behind, self._behind = self._behind, {}
        for partition in behind:
            partition.watchers.pop(self, None)
        self._purgatory.forget(self)
