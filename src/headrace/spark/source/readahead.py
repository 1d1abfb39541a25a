"""Producing the next items in a thread while the last ones are consumed, as far ahead as a number of bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_END_WAIT_S: Final = 5.0
"""How long the end of a reader waits for its thread, which may be waiting for a broker; it ends by itself then."""


def read_ahead(
    source: Generator[T, None, None], size: Callable[[T], int], max_bytes: int
) -> Generator[T, None, None]:
    """Yield what `source` yields, which runs in a thread and stays ahead.

    The thread starts with the first item asked for and ends with the source, its first error, which is raised here
    behind the items before it, or when this generator is closed.

    Args:
        source: What produces the items; only the thread runs it, and closes it.
        size: An item's size in bytes.
        max_bytes: How many may wait to be consumed; one item always may.
    """
    ahead = _Ahead(source, size, max_bytes)
    thread = threading.Thread(target=ahead.run, name="headrace-read-ahead", daemon=True)
    thread.start()
    try:
        while (item := ahead.take()) is not None:
            yield item[0]
    finally:
        ahead.stop()
        thread.join(_END_WAIT_S)


class _Ahead(Generic[T]):
    """What producer and consumer share."""

    def __init__(
        self, source: Generator[T, None, None], size: Callable[[T], int], max_bytes: int
    ) -> None:
        self._source = source
        self._size = size
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._bytes = 0
        self._stopped = False
        self._ended = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Produce until the end, an error or `stop`."""
        error: BaseException | None = None
        try:
            for item in self._source:
                if not self._put(item):
                    break
            self._source.close()
        except BaseException as raised:  # noqa: BLE001 - the consumer raises it
            error = raised
        with self._changed:
            self._ended = True
            self._error = error
            self._changed.notify_all()

    def _put(self, item: T) -> bool:
        with self._changed:
            self._items.append(item)
            self._bytes += self._size(item)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or self._bytes < self._max_bytes)
            return not self._stopped

    def take(self) -> tuple[T] | None:
        """Wait for an item and return it; None at the end.

        Raises:
            BaseException: What the source raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended)
            if self._items:
                item = self._items.popleft()
                self._bytes -= self._size(item)
                self._changed.notify_all()
                return (item,)
            if self._error is not None:
                raise self._error
            return None

    def stop(self) -> None:
        """Have the producer end."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()
