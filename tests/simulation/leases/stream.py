"""A simulated stream, whose shards split, merge and expire."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange

WHOLE = 1 << 128


@dataclass(slots=True)
class Shard:
    """A shard, whose records are their arrival times. Sequence numbers contain the shard and an index."""

    shard: str
    number: int
    parents: frozenset[str]
    hash_range: HashRange
    closed: bool = False
    children: list[Shard] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def sequence_number(self, index: int) -> str:
        """Return the sequence number of a record. Its number of digits grows, so that a comparison as text fails."""
        return str(9 + self.number + index * 1000)

    def index_after(self, checkpoint: Checkpoint) -> int:
        """Return the index of the record after a checkpoint."""
        if checkpoint.is_sequence_number:
            return (int(checkpoint.position) - 9 - self.number) // 1000 + 1
        if checkpoint.is_end:
            return len(self.times)
        since_ms = checkpoint.timestamp_ms
        if since_ms is None:
            return 0
        return next((i for i, at in enumerate(self.times) if at >= since_ms), len(self.times))


class Stream:
    """A stream, and the operations of Kinesis on it."""

    def __init__(self, name: str, shards: int, *, is_old: bool) -> None:
        self.name = name
        self.shards: dict[str, Shard] = {}
        self.gone: set[str] = set()
        step = WHOLE // shards
        # The parents of the shards of an old stream have expired.
        parents = frozenset({"shardId-ancient"}) if is_old else frozenset()
        for number in range(shards):
            self._add(parents, HashRange(number * step, (number + 1) * step - 1))

    def _add(self, parents: frozenset[str], hash_range: HashRange) -> Shard:
        number = len(self.shards)
        shard = Shard(f"shardId-{number:012}", number, parents, hash_range)
        self.shards[shard.shard] = shard
        return shard

    @property
    def open(self) -> list[Shard]:
        return [shard for shard in self.shards.values() if not shard.closed]

    def list_shards(self) -> list[Shard]:
        return [shard for name, shard in self.shards.items() if name not in self.gone]

    def put(self, now_ms: int, chance: random.Random, count: int) -> None:
        """Write some records. One part of the keys gets more records."""
        shards = self.open
        for _ in range(count):
            shard = shards[min(chance.randrange(len(shards)), chance.randrange(len(shards)))]
            shard.times.append(now_ms)

    def reshard(self, chance: random.Random) -> str:
        """Split a shard, or merge two adjacent shards."""
        shards = sorted(self.open, key=lambda shard: shard.hash_range)
        if len(shards) > 1 and chance.random() < 0.5:
            first = chance.randrange(len(shards) - 1)
            low, high = shards[first : first + 2]
            child = self._add(
                frozenset({low.shard, high.shard}),
                HashRange(low.hash_range.first, high.hash_range.last),
            )
            for parent in (low, high):
                parent.closed, parent.children = True, [child]
            return f"merge of {low.shard} and {high.shard} to {child.shard}"
        parent = chance.choice(shards)
        first, last = parent.hash_range
        middle = (first + last) // 2
        parent.closed = True
        parent.children = [
            self._add(frozenset({parent.shard}), HashRange(*half))
            for half in ((first, middle), (middle + 1, last))
        ]
        return f"split of {parent.shard} to {[child.shard for child in parent.children]}"
