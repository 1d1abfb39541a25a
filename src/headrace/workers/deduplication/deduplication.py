"""Skips records whose key, returned by `dedupe=`, was handled before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from headrace.dead_letters.error_text import repr_of
from headrace.types import TopicPartition
from headrace.workers.deduplication.keys import KeyStore
from headrace.workers.deduplication.recent_keys import RecentKeys
from headrace.workers.handler.results import ready
from headrace.workers.output.outbox import HandledKey, Outbox

_log: Final = logging.getLogger("headrace.workers")


class Deduplication:
    """Decides which records of one worker are new, while other records are handled. One event loop uses it.

    A record with the key None is always new.
    """

    def __init__(self, store: KeyStore, worker: str = "") -> None:
        self._worker = worker
        self._store = store
        self._busy: dict[Hashable, asyncio.Future[None]] = {}
        """The keys whose records are handled at this moment. Each future is resolved when the handler has ended."""
        self._held: set[Hashable] = set()
        """The keys of handled records whose transaction is not committed, or which are not in the store yet."""
        self._unkept = RecentKeys()
        """The keys of committed records that the store could not keep."""
        self._adding: set[asyncio.Task[None]] = set()
        """The tasks that write keys of committed transactions to the store."""

    async def prepare(self) -> None:
        """Check that keys can be kept.

        Raises:
            HeadraceError: Keys cannot be kept.
        """
        await self._store.prepare()

    async def begin(self, partition: TopicPartition, keys: Sequence[Hashable]) -> list[bool]:
        """Return, for each key, whether its record is new. From now on the records of the new keys are being handled.

        The call waits until no other handler runs for one of the keys.
        """
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
            self._free(known)  # if the store raised, these are all keys
        left = set(asked) - known
        fresh = []
        for key in keys:
            fresh.append(key is None or key in left)
            left.discard(key)
        return fresh

    async def end(self, marks: Sequence[HandledKey], *, handled: bool) -> None:
        """End the handling of new keys, and keep them if their records were handled. Errors end the handling, too."""
        try:
            if handled:
                await self._store.keep(marks)
        finally:
            self._free(mark.key for mark in marks)

    async def hold(self, out: Outbox, marks: Sequence[HandledKey]) -> None:
        """End the handling of new keys. They count as handled from now on, until `release`."""
        try:
            await self._store.write(out, marks)
            out.keys += marks
            self._held.update(mark.key for mark in marks)
        finally:
            self._free(mark.key for mark in marks)

    def release(self, marks: Sequence[HandledKey], *, handled: bool) -> None:
        """Keep the keys of a committed transaction; forget them if `handled` is false, because it was dropped."""
        if not handled or self._store.note(marks):
            self._held.difference_update(mark.key for mark in marks)
            return
        task = asyncio.get_running_loop().create_task(self._keep(list(marks)))
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)

    async def restore(self, topic: str) -> None:
        """Create the topic of the store again, if `topic` is that topic and was deleted."""
        await self._store.restore(topic)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the keys of partitions that belong to other members now."""
        self._store.forget(partitions)

    async def close(self, timeout_s: float) -> None:
        """Close the store. Wait up to `timeout_s` seconds for keys that are being written."""
        if self._adding:
            await asyncio.wait(self._adding, timeout=timeout_s)
        await self._store.close()

    async def _keep(self, marks: list[HandledKey]) -> None:
        """Write the keys of a committed transaction to the store. If that fails, this process remembers them."""
        try:
            await self._store.keep(marks)
        except Exception as error:  # noqa: BLE001 - an object of the program may raise anything
            _log.warning(
                "%s: seen= has not kept %d keys of committed records; this process remembers them until it ends: %s",
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


def check_keys(keys: Sequence[Any]) -> None:
    """Check that the results of `dedupe=` can be keys.

    Raises:
        UnusableHandlerError: A result is a coroutine.
        TypeError: A result cannot be hashed.
    """
    for key in keys:
        ready("dedupe=", key)
        try:
            hash(key)
        except TypeError as error:
            raise TypeError(
                f"dedupe= returned a value that cannot be a key: {repr_of(error)}"
            ) from error
