"""Delayed fetches that have to check a partition again, because its high watermark has moved.

Thousands of fetches may watch one partition. The first ones check at once, the others in later rounds, some of each
partition in turn. If the high watermark moves again before all fetches of a partition have checked, all of them check
once more afterwards. Thus each fetch sees the latest state, and there is one list of fetches for each partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from headrace.errors import ErrorCode

LOOKS_PER_ROUND: Final = 500
"""The fetches that check in one round, some 10 ms. A fetch counts once more for every eight partitions that it
watches.
"""
_LOOKS_IN_TURN: Final = 100
_PARTITIONS_A_LOOK: Final = 8


class Watcher(Protocol):
    """A delayed fetch, as the partitions that it watches see it."""

    def __hash__(self) -> int:
        """Watchers are equal only if they are the same object."""

    @property
    def partitions_count(self) -> int:
        """The number of partitions that the fetch watches."""

    def partition_changed(self, partition: WatchedPartition, /) -> object:
        """Check the partition: its high watermark has moved, or the partition is not served any more."""


class WatchedPartition(Protocol):
    """A partition, as the delayed fetches that watch it see it."""

    refusal: ErrorCode
    """The error for requests to the partition. NONE while this broker serves it."""
    watchers: dict[Watcher, None]
    """The fetches that watch the partition, in the order in which they came."""

    def __hash__(self) -> int:
        """Partitions are equal only if they are the same object."""


class Notices:
    """The partitions whose high watermark has moved, and the fetches that have to check them."""

    __slots__ = ("_left", "_moved_again", "moved")

    def __init__(self) -> None:
        self.moved: dict[WatchedPartition, Iterator[Watcher]] = {}
        """The partitions whose high watermark has moved, each with the fetches that have not checked yet."""
        self._moved_again: set[WatchedPartition] = set()
        """The partitions whose high watermark has moved again before all their fetches have checked."""
        self._left = LOOKS_PER_ROUND

    def __len__(self) -> int:
        return len(self.moved)

    def begin_round(self) -> None:
        """Begin a round: reset the budget of checks."""
        self._left = LOOKS_PER_ROUND

    def add(self, partition: WatchedPartition) -> None:
        """Let all fetches that watch a partition check it, in this round or in later ones."""
        if partition in self.moved:
            self._moved_again.add(partition)
        elif partition.watchers:
            self.moved[partition] = iter(list(partition.watchers))

    def deliver(self) -> bool:
        """Let fetches check within the budget of the round; return whether any partition had fetches."""
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
        """Let some fetches of a partition check; return whether there may be more."""
        for looked, watcher in enumerate(watchers, 1):
            self._left -= 1 + watcher.partitions_count // _PARTITIONS_A_LOOK
            watcher.partition_changed(partition)
            if looked == _LOOKS_IN_TURN or self._left <= 0:
                return True
        return False
