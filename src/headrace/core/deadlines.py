"""Timers as data: keys with deadlines. Nothing here runs by itself."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_SPARE: Final = 64


class Deadlines(Generic[K]):
    """A set of keys, each with one deadline in milliseconds.

    To set a key again moves its deadline. The old entry of the heap is dropped later. The heap never holds more than
    twice the number of keys, plus a constant. So heartbeats that move a deadline a thousand times cost no memory, and
    neither do cancelled keys.
    """

    __slots__ = ("_deadlines", "_heap", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[K, tuple[int, int, K]] = {}
        """The heap entry of each key that is valid."""
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def get(self, key: K) -> int | None:
        """Return the deadline of a key, None without one."""
        entry = self._deadlines.get(key)
        return entry[0] if entry is not None else None

    def set(self, key: K, deadline_ms: int) -> None:
        """Set the deadline of a key, and replace an earlier one."""
        self._sequence += 1
        entry = self._deadlines[key] = (deadline_ms, self._sequence, key)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._deadlines) + _SPARE:
            self._compact()

    def cancel(self, key: K) -> None:
        """Remove the deadline of a key. Does nothing if it has none."""
        self._deadlines.pop(key, None)
        if len(self._heap) > 2 * len(self._deadlines) + _SPARE:
            self._compact()

    def _compact(self) -> None:
        self._heap = list(self._deadlines.values())
        heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline in milliseconds, None without one."""
        while self._heap:
            entry = self._heap[0]
            if self._deadlines.get(entry[2]) is entry:
                return entry[0]
            heapq.heappop(self._heap)
        return None

    def expire(self, now_ms: int, most: int | None = None) -> list[K]:
        """Remove and return the keys whose deadline is at or before `now_ms`, earliest first.

        Args:
            now_ms: The time.
            most: The largest number of keys to return, None for all. The next call returns the others.
        """
        expired: list[K] = []
        while (next_ms := self.next_ms) is not None and next_ms <= now_ms:
            if most is not None and len(expired) >= most:
                break
            key = heapq.heappop(self._heap)[2]
            del self._deadlines[key]
            expired.append(key)
        return expired
