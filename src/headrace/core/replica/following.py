"""The follower's side of replication: where a follower fetches, and what a response of the leader does to its log.

Four rules keep the log of a follower equal to the log of its leader:

* A fetch offset is a promise. Records that are synced before they are acknowledged count only when the follower has
  synced them. So the follower fetches from its synced offset, and not before everything that it has appended is synced.
* A log is truncated only where its leader epochs differ from those of the leader, never to the high watermark: the
  high watermark of a follower is older than that of its leader.
* A truncation comes before the high watermark. It never removes a record below the high watermark: such a record is
  committed, so one of both logs is wrong, and the replica stops. After an unclean election the leader may lack such
  records. Then a replica that has nothing of later leader epochs begins its log anew.
* Only the response to the fetch in flight counts. A late response describes a log that has changed meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from headrace.core.replica.progress import own_progress
from headrace.core.replica.role import NO_EPOCH


class FollowerLog(Protocol):
    """The log of a follower, as far as its leader's responses concern it."""

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record."""

    @property
    def log_end_offset(self) -> int:
        """The offset after the last record."""

    @property
    def synced_offset(self) -> int:
        """The end of what is on stable storage."""

    @property
    def high_watermark(self) -> int:
        """The end of what the follower knows to be committed."""

    def epoch_at(self, offset: int, /) -> int:
        """Return the leader epoch of a record, -1 if it is unknown."""

    def end_offset_for_epoch(self, epoch: int, /) -> tuple[int, int]:
        """Return the largest leader epoch at or below an epoch with its end offset; (-1, -1) if there is none."""


class Position(NamedTuple):
    """The offsets that a follower sends in a fetch.

    Attributes:
        leader_epoch: The leader epoch that the follower knows.
        fetch_offset: The offset of the first record wanted: the progress of the follower.
        last_fetched_epoch: The leader epoch of the record before; -1 if there is none.
        log_start_offset: The log start offset of the follower.
    """

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class Fetched(NamedTuple):
    """The response of the leader for one partition.

    Attributes:
        high_watermark: The leader's high watermark.
        log_start_offset: The leader's log start offset.
        diverging: The largest leader epoch of the leader at or below `last_fetched_epoch`, and its end offset; None if
            the logs do not differ. The epoch is -1 if the leader has no such epoch.
        is_out_of_range: Whether the leader does not have the fetch offset.
    """

    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None = None
    is_out_of_range: bool = False


class Append(NamedTuple):
    """The follower appends the records of the response, and then takes its offsets (`offsets_after`)."""


class Truncate(NamedTuple):
    """The follower removes its records from an offset on, and fetches again."""

    end_offset: int


class BeginAt(NamedTuple):
    """The follower removes all records, and begins its log at the log start offset of the leader.

    The leader has deleted what the follower needs next, or lacks committed records since an unclean election.
    """

    offset: int


class Stop(NamedTuple):
    """The follower stops, because the leader does not have a record that is committed."""

    reason: str


Decision: TypeAlias = Append | Truncate | BeginAt | Stop


class Following:
    """One replica that follows a leader in one leader epoch."""

    __slots__ = ("_in_flight", "_unclean_epoch", "leader_epoch", "syncs_first")

    def __init__(
        self, leader_epoch: int, *, syncs_first: bool, unclean_epoch: int = NO_EPOCH
    ) -> None:
        """Begin to follow.

        Args:
            leader_epoch: The leader epoch.
            syncs_first: Whether records are synced before they are acknowledged.
            unclean_epoch: The leader epoch that the last unclean election began; -1 if there was none.
        """
        self.leader_epoch = leader_epoch
        self._unclean_epoch = unclean_epoch
        self.syncs_first = syncs_first
        """Whether records are synced before they are acknowledged."""
        self._in_flight: Position | None = None

    def is_ready(self, log: FollowerLog) -> bool:
        """Return whether the follower may fetch: what it has appended is synced, if it has to be."""
        return not self.syncs_first or log.synced_offset >= log.log_end_offset

    def begin(self, log: FollowerLog) -> Position:
        """Begin a fetch, and return where. The response to an earlier fetch does not count any more."""
        end = own_progress(log.log_end_offset, log.synced_offset, syncs_first=self.syncs_first)
        epoch = log.epoch_at(end - 1) if end > log.log_start_offset else -1
        self._in_flight = Position(self.leader_epoch, end, epoch, log.log_start_offset)
        return self._in_flight

    def decide(self, position: Position, fetched: Fetched, log: FollowerLog) -> Decision | None:
        """Return what a response does; None if it is late, and does nothing.

        Args:
            position: The result of `begin` for the request of the response.
            fetched: The response.
            log: The log of the follower.
        """
        if position is not self._in_flight or log.log_end_offset != position.fetch_offset:
            return None
        if fetched.diverging is not None:
            self._in_flight = None
            truncation = _truncation(*fetched.diverging, log)
            if isinstance(truncation, Stop) and position.last_fetched_epoch < self._unclean_epoch:
                return BeginAt(fetched.log_start_offset)
            return truncation
        if fetched.is_out_of_range:
            self._in_flight = None
            return _out_of_range(fetched, log)
        return Append()


def _truncation(epoch: int, end_offset: int, log: FollowerLog) -> Truncate | Stop:
    """Return the truncation to the end of the newest leader epoch that both logs have, as far as it is known now."""
    _, own_end = log.end_offset_for_epoch(epoch)
    target = end_offset if own_end < 0 else min(end_offset, own_end)
    if target < log.high_watermark:
        return Stop(
            f"the leader's log differs from offset {target} on, and records below the high watermark "
            f"{log.high_watermark} are committed"
        )
    return Truncate(max(target, log.log_start_offset))


def _out_of_range(fetched: Fetched, log: FollowerLog) -> BeginAt | Stop | None:
    """Return what follows if the leader does not have the fetch offset: the leader has deleted it."""
    if fetched.log_start_offset > log.log_end_offset:
        return BeginAt(fetched.log_start_offset)
    return None


def offsets_after(fetched: Fetched, log: FollowerLog) -> tuple[int, int]:
    """Return the high watermark and the log start offset of the follower after it has appended the records.

    The high watermark is that of the leader, as far as the follower has the records. The log start offset is that of
    the leader, as far as records are committed.
    """
    high_watermark = max(log.high_watermark, min(fetched.high_watermark, log.log_end_offset))
    return high_watermark, max(log.log_start_offset, min(fetched.log_start_offset, high_watermark))
