"""Fetches that wait and have to look again, because the high watermark of a partition has moved.

Thousands of fetches may wait for one partition. The first ones look at once, the others in later rounds, some of each
partition in turn. When a partition moves on while its fetches are looking, all of its fetches look once more
afterwards: each of them sees the latest state, and what is remembered is one list of fetches for each partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

LOOKS_PER_ROUND: Final = 500
"""Fetches that look in one round, each counted once more for every eight partitions that it watches: some 10 ms."""
_LOOKS_IN_TURN: Final = 100
_PARTITIONS_A_LOOK: Final = 8


class Watcher(Protocol):
    """A delayed fetch, as the partitions that it watches see it."""

    def __hash__(self) -> int:
        """Watchers are equal only if they are the same object."""

    @property
    def partitions_count(self) -> int:
        """How many partitions the fetch watches."""

    def partition_changed(self, partition: WatchedPartition, /) -> object:
        """Check the partition: its high watermark has moved, or the partition is not served any more."""


class WatchedPartition(Protocol):
    """A partition, as the delayed fetches that watch it see it."""

    gone: bool
    """Whether the topic was deleted, or the log directory has failed."""
    watchers: dict[Watcher, None]
    """The fetches that watch the partition, in the order in which they came."""

    def __hash__(self) -> int:
        """Partitions are equal only if they are the same object."""


class Notices:
    """Partitions that have moved on, and the fetches that have yet to look."""

    __slots__ = ("_left", "_moved_again", "moved")

    def __init__(self) -> None:
        self.moved: dict[WatchedPartition, Iterator[Watcher]] = {}
        """The partitions that have moved on, each with its fetches that have yet to look."""
        self._moved_again: set[WatchedPartition] = set()
        """Those that have moved on while their fetches were looking."""
        self._left = LOOKS_PER_ROUND

    def __len__(self) -> int:
        return len(self.moved)

    def begin_round(self) -> None:
        """Allow as many looks as one round may have."""
        self._left = LOOKS_PER_ROUND

    def add(self, partition: WatchedPartition) -> None:
        """Let all fetches that wait for a partition look, in this round or in later ones."""
        if partition in self.moved:
            self._moved_again.add(partition)
        elif partition.watchers:
            self.moved[partition] = iter(list(partition.watchers))

    def deliver(self) -> bool:
        """Let fetches look, as far as the round allows; tell whether any partition had fetches."""
        ran = False
        while self.moved and self._left > 0:
            partition = next(iter(self.moved))
            watchers = self.moved.pop(partition)
            ran = True
            if self._look(partition, watchers):
                self.moved[partition] = watchers  # behind the others
            elif partition in self._moved_again:
                self._moved_again.discard(partition)
                self.add(partition)
        return ran

    def _look(self, partition: WatchedPartition, watchers: Iterator[Watcher]) -> bool:
        """Let some fetches look; tell whether there may be more."""
        for looked, watcher in enumerate(watchers, 1):
            self._left -= 1 + watcher.partitions_count // _PARTITIONS_A_LOOK
            watcher.partition_changed(partition)
            if looked == _LOOKS_IN_TURN or self._left <= 0:
                return True
        return False
