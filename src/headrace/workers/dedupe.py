"""Records that carry the same key of `dedupe=` are handled once."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from headrace.workers.outcomes import said
from headrace.workers.results import ready
from headrace.workers.settings import SeenKeys
from headrace.workers.threads import HandlerThreads

DEFAULT_SIZE: Final = 100_000

_log: Final = logging.getLogger("headrace.workers")


class RecentKeys:
    """The keys handled last, in memory: what another process handled is not known here."""

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


class Deduplication:
    """Which of some records are new, while others are being handled; for one event loop.

    A key None is no key: its record is always new. The program's own `seen=` is called in one thread, so that it may
    block, and is never called twice at a time.
    """

    def __init__(self, seen: SeenKeys | None, worker: str = "") -> None:
        self._worker = worker
        self._threads = None if seen is None else HandlerThreads(1, f"headrace-{worker}-seen")
        self._seen: SeenKeys = RecentKeys() if seen is None else seen
        self._busy: dict[Hashable, asyncio.Future[None]] = {}
        self._held: set[Hashable] = set()
        """Handled, in transactions that are not committed, or not in `seen` yet."""
        self._unkept = RecentKeys()
        """Handled and committed, though `seen` did not take them."""
        self._adding: set[asyncio.Task[None]] = set()

    async def begin(self, keys: Sequence[Hashable]) -> list[bool]:
        """Return which keys are new, when those being handled have ended; the new ones are being handled now."""
        while waited := [self._busy[key] for key in keys if key in self._busy]:
            await asyncio.wait(waited)
        asked = [key for key in dict.fromkeys(keys) if key is not None and key not in self._held]
        for key in asked:
            self._busy[key] = asyncio.get_running_loop().create_future()
        known: set[Hashable] = set(asked)
        try:
            known = await self._call(partial(_known, self._seen, asked))
            known.update(key for key in asked if key in self._unkept)
        finally:
            self._free(known)  # all, if the question failed
        left = set(asked) - known
        fresh = []
        for key in keys:
            fresh.append(key is None or key in left)
            left.discard(key)
        return fresh

    async def end(self, keys: Sequence[Hashable], *, handled: bool) -> None:
        """Take note that new keys are not being handled any more; whatever is raised, they are not."""
        try:
            if handled:
                await self._call(partial(_add, self._seen, keys))
        finally:
            self._free(keys)

    def hold(self, keys: Collection[Hashable]) -> None:
        """Take note that new keys are not being handled any more, and count if their transaction is committed."""
        self._held.update(keys)
        self._free(keys)

    def release(self, keys: Collection[Hashable], *, handled: bool) -> None:
        """Take note that a transaction is committed; or never will be, so that its keys come again."""
        if not handled or self._threads is None:
            self._held.difference_update(keys)
            if handled:
                _add(self._seen, keys)
            return
        task = asyncio.get_running_loop().create_task(self._keep(list(keys)))
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)

    async def close(self, timeout_s: float) -> None:
        """Wait for what is being kept, for so long at most."""
        if self._adding:
            await asyncio.wait(self._adding, timeout=timeout_s)
        if self._threads is not None:
            self._threads.close()

    async def _keep(self, keys: list[Hashable]) -> None:
        """Keep keys of a committed transaction. Where that fails they are known as long as this process runs."""
        try:
            await self._call(partial(_add, self._seen, keys))
        except Exception as error:  # noqa: BLE001 - the program's own
            _log.warning(
                "%s: seen= has not taken %d keys of committed records, which are known until a restart: %s",
                self._worker,
                len(keys),
                said(error),
            )
            for key in keys:
                self._unkept.add(key)
        finally:
            self._held.difference_update(keys)

    async def _call(self, function: Callable[[], Any]) -> Any:
        return function() if self._threads is None else await self._threads.run(function)

    def _free(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            if key is not None and (future := self._busy.pop(key, None)) is not None:
                future.set_result(None)


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
                f"dedupe= returned no key that can be remembered: {said(error)}"
            ) from error
