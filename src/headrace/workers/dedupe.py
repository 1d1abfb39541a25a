"""Records that carry the same key of `dedupe=` are handled once."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from headrace.dead_letters.error_text import repr_of
from headrace.types import TopicPartition
from headrace.workers.outbox import HandledKey, Outbox, Publisher
from headrace.workers.outlet import Outlet
from headrace.workers.results import ready
from headrace.workers.seen.declared import SeenFile, SeenTopic
from headrace.workers.seen.file import FileKeys
from headrace.workers.seen.keys import KeyStore, SeenKeys
from headrace.workers.seen.topic import TopicKeys
from headrace.workers.settings import WorkerSettings
from headrace.workers.threads import HandlerThreads

DEFAULT_SIZE: Final = 100_000

_log: Final = logging.getLogger("headrace.workers")


class RecentKeys:
    """The keys handled last, in memory: what another process handled is not known here. Also a `KeyStore`."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self._size = size
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def add(self, key: Hashable) -> None:
        """Keep a key, and forget the oldest beyond the size."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._size:
            self._keys.popitem(last=False)

    async def prepare(self) -> None:
        """Do nothing: this store needs no such step."""

    async def known(
        self,
        partition: TopicPartition,  # noqa: ARG002 - of all partitions alike
        keys: Collection[Hashable],
    ) -> Collection[Hashable]:
        """Return which keys are among the last."""
        return {key for key in keys if key in self._keys}

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Keep the keys of handled records."""
        self.note(marks)

    async def write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        """Do nothing: `note` follows."""

    def note(self, marks: Sequence[HandledKey]) -> bool:
        """Keep the keys of handled records."""
        for mark in marks:
            if mark.key is not None:
                self.add(mark.key)
        return True

    async def restore(self, topic: str) -> None:
        """Do nothing: this store needs no such step."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: a partition may come back."""

    async def close(self) -> None:
        """Do nothing: this store needs no such step."""


class ProgramKeys:
    """The `KeyStore` of a program's own object.

    It is called in one thread, so that it may block, and is never called twice at a time.
    """

    def __init__(self, seen: SeenKeys, worker: str) -> None:
        self._seen = seen
        self._threads = HandlerThreads(1, f"headrace-{worker}-seen")

    async def prepare(self) -> None:
        """Do nothing: the object is the program's."""

    async def known(
        self,
        partition: TopicPartition,  # noqa: ARG002 - the object knows nothing of partitions
        keys: Collection[Hashable],
    ) -> Collection[Hashable]:
        """Return which keys are in the object."""
        known: set[Hashable] = await self._threads.run(partial(_known, self._seen, keys))
        return known

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Add keys to the object."""
        await self._threads.run(partial(_add, self._seen, [mark.key for mark in marks]))

    async def write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        """Do nothing: the object has no part in transactions."""

    def note(self, marks: Sequence[HandledKey]) -> bool:
        """Return False: the object gets keys when their transaction is committed."""
        return not marks

    async def restore(self, topic: str) -> None:
        """Do nothing: this store needs no such step."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: this store needs no such step."""

    async def close(self) -> None:
        """End the thread of the store."""
        self._threads.close()


class Deduplication:
    """Which of some records are new, while others are being handled; for one event loop.

    A key None is no key: its record is always new.
    """

    def __init__(self, store: KeyStore, worker: str = "") -> None:
        self._worker = worker
        self._store = store
        self._busy: dict[Hashable, asyncio.Future[None]] = {}
        self._held: set[Hashable] = set()
        """Handled, in transactions that are not committed, or not in the store yet."""
        self._unkept = RecentKeys()
        """Handled and committed, though the store did not take them."""
        self._adding: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Make sure that keys can be kept.

        Raises:
            HeadraceError: They cannot.
        """
        await self._store.prepare()

    async def begin(self, partition: TopicPartition, keys: Sequence[Hashable]) -> list[bool]:
        """Return which keys are new, when those being handled have ended; the new ones are being handled now."""
        while waited := [self._busy[key] for key in keys if key in self._busy]:
            await asyncio.wait(waited)
        asked = [key for key in dict.fromkeys(keys) if key is not None and key not in self._held]
        for key in asked:
            self._busy[key] = asyncio.get_running_loop().create_future()
        known: set[Hashable] = set(asked)
        try:
            known = {*await self._store.known(partition, asked)}
            known.update(key for key in asked if key in self._unkept)
        finally:
            self._free(known)  # all, if the question failed
        left = set(asked) - known
        fresh = []
        for key in keys:
            fresh.append(key is None or key in left)
            left.discard(key)
        return fresh

    async def end(self, marks: Sequence[HandledKey], *, handled: bool) -> None:
        """Take note that new keys are not being handled any more; whatever is raised, they are not."""
        try:
            if handled:
                await self._store.keep(marks)
        finally:
            self._free(mark.key for mark in marks)

    async def hold(self, out: Outbox, marks: Sequence[HandledKey]) -> None:
        """Take note that new keys are not being handled any more, and count if their transaction is committed."""
        try:
            await self._store.write(out, marks)
            out.keys += marks
            self._held.update(mark.key for mark in marks)
        finally:
            self._free(mark.key for mark in marks)

    def release(self, marks: Sequence[HandledKey], *, handled: bool) -> None:
        """Take note that a transaction is committed; or never will be, so that its keys come again."""
        if not handled or self._store.note(marks):
            self._held.difference_update(mark.key for mark in marks)
            return
        task = asyncio.get_running_loop().create_task(self._keep(list(marks)))
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)

    async def restore(self, topic: str) -> None:
        """Create the store's topic again, if it is this one and was deleted."""
        await self._store.restore(topic)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Take note that partitions are other members' now."""
        self._store.forget(partitions)

    async def close(self, timeout_s: float) -> None:
        """Wait for what is being kept, for so long at most."""
        if self._adding:
            await asyncio.wait(self._adding, timeout=timeout_s)
        await self._store.close()

    async def _keep(self, marks: list[HandledKey]) -> None:
        """Keep keys of a committed transaction. Where that fails they are known as long as this process runs."""
        try:
            await self._store.keep(marks)
        except Exception as error:  # noqa: BLE001 - the program's own
            _log.warning(
                "%s: seen= has not taken %d keys of committed records, which are known until a restart: %s",
                self._worker,
                len(marks),
                repr_of(error),
            )
            for mark in marks:
                self._unkept.add(mark.key)
        finally:
            self._held.difference_update(mark.key for mark in marks)

    def _free(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            if key is not None and (future := self._busy.pop(key, None)) is not None:
                future.set_result(None)


def open_keys(settings: WorkerSettings, outlet: Outlet) -> KeyStore:
    """Return what keeps the keys of a worker."""
    seen = settings.seen
    if seen is None:
        return RecentKeys()
    if isinstance(seen, SeenTopic):
        return TopicKeys(
            seen,
            outlet,
            group=settings.group,
            worker=settings.name,
            sources=settings.topics,
        )
    if isinstance(seen, SeenFile):
        return FileKeys(seen, outlet.now_ms, group=settings.group, worker=settings.name)
    return ProgramKeys(seen, settings.name)


def _known(seen: SeenKeys, keys: Collection[Hashable]) -> set[Hashable]:
    """Return which keys were handled before."""
    contains = type(seen).__contains__  # `key in seen` takes a coroutine for True
    return {key for key in keys if ready("`key in seen`", contains(seen, key))}


def _add(seen: SeenKeys, keys: Collection[Hashable]) -> None:
    for key in keys:
        if key is not None:
            ready("seen.add", seen.add(key))


def check_keys(keys: Sequence[Any]) -> None:
    """Make sure that what `dedupe=` returned can be a key.

    Raises:
        Unusable: It is a coroutine.
        TypeError: It cannot be hashed.
    """
    for key in keys:
        ready("dedupe=", key)
        try:
            hash(key)
        except TypeError as error:
            raise TypeError(
                f"dedupe= returned no key that can be remembered: {repr_of(error)}"
            ) from error
