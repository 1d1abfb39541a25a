"""The divergence of the log of a follower from the log of its leader (KIP-101, KIP-279, KIP-595): the leader's side."""

from __future__ import annotations

from typing import Protocol


class LeaderLog(Protocol):
    """The log of a leader, as far as it is compared with those of followers."""

    @property
    def log_end_offset(self) -> int:
        """The offset after the last record."""

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch of the log."""

    def end_offset_for_epoch(self, epoch: int, /) -> tuple[int, int]:
        """Return the largest leader epoch at or below an epoch with its end offset; (-1, -1) if there is none."""


def find_divergence(
    log: LeaderLog, fetch_offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """Return the largest leader epoch that both logs may have, and its end offset; None if the logs do not differ.

    Args:
        log: The log of the leader.
        fetch_offset: The log end offset of the follower.
        last_fetched_epoch: The leader epoch of the follower's last record; -1 if it has none.
    """
    if last_fetched_epoch < 0:
        return (-1, log.log_end_offset) if fetch_offset > log.log_end_offset else None
    epoch, end_offset = log.end_offset_for_epoch(last_fetched_epoch)
    if epoch < 0:
        return log.leader_epoch, log.log_end_offset
    if epoch == last_fetched_epoch and end_offset >= fetch_offset:
        return None
    return epoch, end_offset
