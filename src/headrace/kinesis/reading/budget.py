"""The budget of bytes that shards may read ahead. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Hashable

from headrace.kinesis.reading.settings import ReadSettings


class Budget:
    """Bytes that several shards share. No shard can use all of them.

    Half of the bytes is divided equally among the shards, so that every shard can always go on. The other half is for
    shards that need more. A shard never holds more than `shard_bytes`. If shards join while others hold all their
    bytes, the total may be exceeded by half until records are taken from the others.
    """

    def __init__(self, settings: ReadSettings) -> None:
        """Start without shards, with the limits of the settings."""
        self._shard_bytes = settings.shard_bytes
        self._worker_bytes = settings.worker_bytes
        self._own_bytes = 0
        """The bytes of each shard's own part."""
        self._held: dict[Hashable, int] = {}
        self._reserved: dict[Hashable, int] = {}
        self._shared_used = 0
        """The bytes of the shared part that are held or reserved."""

    @property
    def held_bytes(self) -> int:
        """The bytes that all shards hold, without those in flight."""
        return sum(self._held.values())

    def join(self, shard: Hashable) -> None:
        """Add a shard to the budget."""
        self._held[shard] = self._reserved[shard] = 0
        self._divide()

    def leave(self, shard: Hashable) -> None:
        """Remove a shard. The bytes that it held are free."""
        if self._held.pop(shard, None) is not None:
            del self._reserved[shard]
            self._divide()

    def has_space(self, shard: Hashable) -> bool:
        """Whether a read is worth it: half of the shard's own part is free."""
        return self.space(shard) >= max(1, self._own_bytes // 2)

    def space(self, shard: Hashable) -> int:
        """Return how many bytes a shard may read beyond those it holds and has reserved."""
        held = self._held[shard] + self._reserved[shard]
        shared = self._worker_bytes - self._own_bytes * len(self._held) - self._shared_used
        space = max(0, self._own_bytes - held) + max(0, shared)
        return max(0, min(space, self._shard_bytes - held))

    def reserve(self, shard: Hashable) -> int:
        """Reserve the bytes that a read may return, until `settle`; return their number."""
        self._change(shard, 0, -self._reserved[shard])
        space = self.space(shard)
        self._change(shard, 0, space)
        return space

    def settle(self, shard: Hashable, size_bytes: int) -> None:
        """End a reservation. The shard holds the bytes that the read returned, which may be none."""
        if shard in self._held:
            self._change(shard, size_bytes, -self._reserved[shard])

    def free(self, shard: Hashable, size_bytes: int) -> None:
        """Release bytes of a shard that were taken."""
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
