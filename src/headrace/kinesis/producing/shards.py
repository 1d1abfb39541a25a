"""A map of the shards, by which the producer finds the shard of a record."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from headrace.core.lease.lease import HashRange


class ShardMap:
    """The shards of a stream at some time: open shards accept records, closed shards contain older ones."""

    def __init__(
        self,
        open_ranges: Mapping[str, HashRange],
        closed_ranges: Mapping[str, HashRange] | None = None,
    ) -> None:
        self._ranges = {**(closed_ranges or {}), **open_ranges}
        self._open = sorted(open_ranges, key=lambda shard: open_ranges[shard].first)
        self._firsts = [open_ranges[shard].first for shard in self._open]

    def find(self, hash_key: int) -> str | None:
        """Return the open shard that accepts a hash key, or None."""
        index = bisect_right(self._firsts, hash_key) - 1
        if index < 0 or not self.takes(self._open[index], hash_key):
            return None
        return self._open[index]

    def knows(self, shard: str) -> bool:
        """Whether the stream had the shard when it was listed."""
        return shard in self._ranges

    def takes(self, shard: str, hash_key: int) -> bool:
        """Whether a hash key belongs to a shard."""
        first, last = self._ranges[shard]
        return first <= hash_key <= last
