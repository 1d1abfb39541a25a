"""Keys in memory: the default of `seen=`. A restart forgets them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Final

from headrace.types import TopicPartition
from headrace.workers.output.outbox import HandledKey, Publisher

DEFAULT_SIZE: Final = 100_000
"""The number of keys that are kept."""


class RecentKeys:
    """A `KeyStore` with the last keys that this process has handled, in memory."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self._size = size
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def add(self, key: Hashable) -> None:
        """Keep a key, and forget the oldest key if there are too many."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._size:
            self._keys.popitem(last=False)

    async def prepare(self) -> None:
        """Do nothing: this store needs no such step."""

    async def known(
        self,
        partition: TopicPartition,  # noqa: ARG002 - the keys of all partitions are in one store
        keys: Collection[Hashable],
    ) -> Collection[Hashable]:
        """Return the keys that are in memory."""
        return {key for key in keys if key in self._keys}

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Keep the keys of handled records."""
        self.note(marks)

    async def write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        """Do nothing: the call of `note` that follows keeps the keys."""

    def note(self, marks: Sequence[HandledKey]) -> bool:
        """Keep the keys of handled records."""
        for mark in marks:
            if mark.key is not None:
                self.add(mark.key)
        return True

    async def restore(self, topic: str) -> None:
        """Do nothing: this store needs no such step."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: the partition may be assigned to this member again."""

    async def close(self) -> None:
        """Do nothing: this store needs no such step."""
