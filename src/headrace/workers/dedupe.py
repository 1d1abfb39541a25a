"""Records that carry the same key of `dedupe=` are handled once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final

from headrace.workers.settings import SeenKeys

DEFAULT_SIZE: Final = 100_000


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
    """Which of some records are new, while others are being handled; for one event loop."""

    def __init__(self, seen: SeenKeys | None) -> None:
        self._seen: SeenKeys = RecentKeys() if seen is None else seen
        self._busy: dict[Hashable, asyncio.Future[None]] = {}
        self._held: set[Hashable] = set()
        """Handled, in transactions that are not committed."""

    async def begin(self, keys: Sequence[Hashable]) -> list[bool]:
        """Return which keys are new, when those being handled have ended; the new ones are being handled now."""
        while waited := [self._busy[key] for key in keys if key in self._busy]:
            await asyncio.wait(waited)
        fresh: list[bool] = []
        for key in keys:
            is_new = key not in self._busy and key not in self._held and key not in self._seen
            fresh.append(is_new)
            if is_new:
                self._busy[key] = asyncio.get_running_loop().create_future()
        return fresh

    def end(self, keys: Sequence[Hashable], *, handled: bool) -> None:
        """Take note that new keys are not being handled any more."""
        for key in keys:
            self._busy.pop(key).set_result(None)
            if handled:
                self._seen.add(key)

    def hold(self, keys: Sequence[Hashable]) -> None:
        """Take note that new keys are not being handled any more, and count if their transaction is committed."""
        self._held.update(keys)
        for key in keys:
            self._busy.pop(key).set_result(None)

    def release(self, keys: Sequence[Hashable], *, handled: bool) -> None:
        """Take note that a transaction is committed; or never will be, so that its keys come again."""
        self._held.difference_update(keys)
        if handled:
            for key in keys:
                self._seen.add(key)
