"""Keys in an object of the program that was given as `seen=`."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial

from headrace.types import TopicPartition
from headrace.workers.deduplication.keys import SeenKeys
from headrace.workers.handler.results import ready
from headrace.workers.handler.threads import HandlerThreads
from headrace.workers.output.outbox import HandledKey, Publisher


class ProgramKeys:
    """A `KeyStore` that calls an object of the program.

    One thread makes all calls. So the object may block, and needs no lock.
    """

    def __init__(self, seen: SeenKeys, worker: str) -> None:
        self._seen = seen
        self._threads = HandlerThreads(1, f"headrace-{worker}-seen")

    async def prepare(self) -> None:
        """Do nothing: the program has prepared the object."""

    async def known(
        self,
        partition: TopicPartition,  # noqa: ARG002 - the object knows nothing of partitions
        keys: Collection[Hashable],
    ) -> Collection[Hashable]:
        """Return the keys that the object contains."""
        known: set[Hashable] = await self._threads.run(partial(_known, self._seen, keys))
        return known

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Add keys to the object."""
        await self._threads.run(partial(_add, self._seen, [mark.key for mark in marks]))

    async def write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        """Do nothing: the object cannot take part in a transaction."""

    def note(self, marks: Sequence[HandledKey]) -> bool:
        """Return false if there are keys: `keep` adds them when their transaction is committed."""
        return not marks

    async def restore(self, topic: str) -> None:
        """Do nothing: this store needs no such step."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: this store needs no such step."""

    async def close(self) -> None:
        """End the thread of the store."""
        self._threads.close()


def _known(seen: SeenKeys, keys: Collection[Hashable]) -> set[Hashable]:
    """Return the keys that `seen` contains."""
    contains = type(seen).__contains__  # `key in seen` would treat a coroutine as true
    return {key for key in keys if ready("`key in seen`", contains(seen, key))}


def _add(seen: SeenKeys, keys: Collection[Hashable]) -> None:
    for key in keys:
        if key is not None:
            ready("seen.add", seen.add(key))
