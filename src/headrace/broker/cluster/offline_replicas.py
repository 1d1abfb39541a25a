"""Removes the replicas of this broker from ISR and ELR whose log directory has failed while the broker runs.

The broker remains live, so no controller would elect other leaders for the partitions in that directory. A replica that
is the last one in ISR and ELR stays, see `unclean_start.py`.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.cluster.unclean_start import Departing, Departures
from headrace.broker.context import LatestTime
from headrace.broker.metadata.commit_lane import CommitError, CommitLane
from headrace.broker.replication.replicas import Replicas
from headrace.broker.waiting.purgatory import Alarm, Purgatory
from headrace.core.cluster.controller import PARTITIONS_A_COMMIT
from headrace.ports import Journal

RETRY_INTERVAL_MS: Final = 1_000
"""The time after which the broker repeats what the store could not commit, in milliseconds."""


class OfflineReplicas:
    """The replicas that are not served any more."""

    __slots__ = ("_alarm", "_departures", "_is_leaving", "_journal", "_lane", "_purgatory", "_time")

    def __init__(
        self,
        replicas: Replicas,
        departures: Departures,
        lane: CommitLane,
        *,
        purgatory: Purgatory,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Follow the failures of log directories from now on.

        Args:
            replicas: The replicas of this broker.
            departures: Finds the replicas that are not served.
            lane: Commits the changes.
            purgatory: Has the deadlines.
            time: The time of the latest call of the broker.
            journal: Receives the log events.
        """
        self._departures = departures
        self._lane = lane
        self._purgatory = purgatory
        self._time = time
        self._journal = journal
        self._alarm = Alarm(self._leave)
        self._is_leaving = False
        replicas.on_directory_failed = self._leave_later

    def _leave_later(self, pause_ms: int = 0) -> None:
        self._purgatory.add(self._alarm, self._time.now_ms + pause_ms)

    def _leave(self) -> None:
        """Commit that the replicas have left, a part of them at a time."""
        if self._is_leaving:
            self._leave_later(RETRY_INTERVAL_MS)
            return
        unserved = self._departures.unserved()
        self._is_leaving = True
        self._leave_next(unserved, None)

    def _leave_next(self, unserved: list[Departing], error: CommitError) -> None:
        if error is not None or not unserved:
            self._is_leaving = False
            if error is not None:
                self._leave_later(RETRY_INTERVAL_MS)
            return
        some, left = unserved[:PARTITIONS_A_COMMIT], unserved[PARTITIONS_A_COMMIT:]

        def left_isr(error: CommitError) -> None:
            if error is None:
                self._journal.warning("replicas_left_isr", reason="not served", replicas=len(some))
            self._leave_next(left, error)

        self._lane.merge(lambda: self._departures.leave(some)).on_done(left_isr)
