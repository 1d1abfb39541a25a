"""Run a generator in a thread, so that it produces items while the caller consumes earlier items."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_END_WAIT_S: Final = 5.0
"""Seconds for which the end of a read waits for its thread. A thread that waits for a broker ends later by itself."""


def read_ahead(
    source: Generator[T, None, None], size: Callable[[T], int], max_bytes: int
) -> Generator[T, None, None]:
    """Yield the items of `source`, which a thread runs ahead of the caller.

    The thread starts when the first item is requested. It ends at the end of `source`, at an exception of `source`, or
    when this generator is closed. The exception is raised here after the items before it.

    Args:
        source: The generator. Only the thread runs and closes it.
        size: Returns an item's size in bytes.
        max_bytes: The most bytes of items that are not consumed yet. One item is always allowed.
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
    """The state that the thread and the caller share."""

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
        """Produce items until the end, an error or `stop`. The thread runs this method."""
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
        """Wait for an item and return it in a tuple; None at the end.

        Raises:
            BaseException: The exception of the source.
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
        """Let the thread end after its present item."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()
