"""Who may read ahead how much. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Hashable

from headrace.kinesis.reading.settings import ReadSettings


class Budget:
    """Bytes that several shards share, none of which can take all of them.

    Half of the bytes belongs to the shards in equal parts, so that each can always go on; the other half is for
    whoever needs more than that. A shard never holds more than `shard_bytes`. Where shards join while others hold all
    that was theirs before, it is half as much again at most, until those have been taken from.
    """

    def __init__(self, settings: ReadSettings) -> None:
        """Take the limits from settings."""
        self._shard_bytes = settings.shard_bytes
        self._worker_bytes = settings.worker_bytes
        self._own_bytes = 0
        self._held: dict[Hashable, int] = {}
        self._reserved: dict[Hashable, int] = {}
        self._shared_used = 0

    @property
    def held_bytes(self) -> int:
        """What all shards hold, without what is on its way."""
        return sum(self._held.values())

    def join(self, shard: Hashable) -> None:
        """A shard is read from now on."""
        self._held[shard] = self._reserved[shard] = 0
        self._divide()

    def leave(self, shard: Hashable) -> None:
        """A shard is read no more; what it held is free."""
        if self._held.pop(shard, None) is not None:
            del self._reserved[shard]
            self._divide()

    def has_room(self, shard: Hashable) -> bool:
        """Whether a read is worth it: half of what is the shard's own is free."""
        return self.room(shard) >= max(1, self._own_bytes // 2)

    def room(self, shard: Hashable) -> int:
        """Return how much a shard may read beyond what it holds and has reserved."""
        held = self._held[shard] + self._reserved[shard]
        shared = self._worker_bytes - self._own_bytes * len(self._held) - self._shared_used
        room = max(0, self._own_bytes - held) + max(0, shared)
        return max(0, min(room, self._shard_bytes - held))

    def reserve(self, shard: Hashable) -> int:
        """Set aside what a read may bring, until `settle`; return how much that is."""
        self._change(shard, 0, -self._reserved[shard])
        room = self.room(shard)
        self._change(shard, 0, room)
        return room

    def settle(self, shard: Hashable, size_bytes: int) -> None:
        """A read has brought this much, or nothing; the shard holds it from now on."""
        if shard in self._held:
            self._change(shard, size_bytes, -self._reserved[shard])

    def free(self, shard: Hashable, size_bytes: int) -> None:
        """Somebody took over this much of what a shard holds."""
        if shard in self._held:
            self._change(shard, -size_bytes, 0)

    def _change(self, shard: Hashable, held: int, reserved: int) -> None:
        self._shared_used -= self._beyond(shard)
        self._held[shard] += held
        self._reserved[shard] += reserved
        self._shared_used += self._beyond(shard)

    def _beyond(self, shard: Hashable) -> int:
        return max(0, self._held[shard] + self._reserved[shard] - self._own_bytes)

    def _divide(self) -> None:
        shards = max(1, len(self._held))
        self._own_bytes = max(1, min(self._worker_bytes // (2 * shards), self._shard_bytes))
        self._shared_used = sum(self._beyond(shard) for shard in self._held)
