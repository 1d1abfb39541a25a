"""Fetches that wait for data (long polls), and the bounds of their memory.

A delayed fetch has its request and an entry for each of its partitions in memory. The memory of all delayed fetches is
bounded, and the memory of the delayed fetches of one connection. At a bound the broker completes fetches early, with
the records that exist. The clients fetch again: only their wait was shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.broker.session import Session
from headrace.broker.waiting.notices import WatchedPartition
from headrace.broker.waiting.purgatory import Purgatory
from headrace.core.coordinator.runtime import Reply
from headrace.deferred import Deferred
from headrace.protocol.messages.fetch import FetchResponse

_MIB: Final = 1024 * 1024
FETCH_BYTES: Final = 4096
"""The memory of a delayed fetch in bytes, as measured, with the memory of the connection for its response."""
PARTITION_BYTES: Final = 640
"""The memory of a delayed fetch for each partition in bytes: the part of the request, and the watcher."""
WAITING_BYTES_MAX: Final = 256 * _MIB
"""The greatest memory of all delayed fetches, in bytes."""
CONNECTION_BYTES_MAX: Final = 16 * _MIB
"""The greatest memory of the delayed fetches of one connection, in bytes."""


class _Connection:
    """The delayed fetches of one connection with the memory of each, in the order in which they came."""

    __slots__ = ("fetches", "held_bytes")

    def __init__(self) -> None:
        self.fetches: dict[DelayedFetch, int] = {}
        self.held_bytes = 0

    def answer_first(self) -> None:
        next(iter(self.fetches)).expire()


class WaitingFetches:
    """All delayed fetches, by connection."""

    __slots__ = ("_connection_most", "_connections", "_most", "held_bytes")

    def __init__(
        self, most: int = WAITING_BYTES_MAX, connection_most: int = CONNECTION_BYTES_MAX
    ) -> None:
        """Allow delayed fetches of `most` bytes in all, and of `connection_most` bytes for each connection."""
        self._most = most
        self._connection_most = connection_most
        self._connections: dict[Session, _Connection] = {}
        self.held_bytes = 0
        """The memory of all delayed fetches in bytes, as estimated."""

    def __len__(self) -> int:
        return sum(len(connection.fetches) for connection in self._connections.values())

    def add(self, session: Session, fetch: DelayedFetch) -> None:
        """Add a fetch. If a bound is exceeded, answer some fetches, perhaps this one.

        Fetches of clients in the process of the broker are not counted: the program controls their number.
        """
        if session.is_local:
            return
        connection = self._connections.get(session)
        if connection is None:
            connection = self._connections[session] = _Connection()
        size = FETCH_BYTES + PARTITION_BYTES * fetch.partitions_count
        fetch.on_end = lambda: self._remove(session, fetch)
        connection.fetches[fetch] = size
        connection.held_bytes += size
        self.held_bytes += size
        while connection.held_bytes > self._connection_most:
            connection.answer_first()
        if self.held_bytes > self._most:
            self._make_room()

    def _make_room(self) -> None:
        """Answer fetches of the connections with most memory, until an eighth of the allowed memory is free."""
        enough = self._most - self._most // 8
        for connection in sorted(
            self._connections.values(), key=lambda one: one.held_bytes, reverse=True
        ):
            while connection.fetches and self.held_bytes > enough:
                connection.answer_first()
            if self.held_bytes <= enough:
                return

    def _remove(self, session: Session, fetch: DelayedFetch) -> None:
        connection = self._connections[session]
        size = connection.fetches.pop(fetch)
        connection.held_bytes -= size
        self.held_bytes -= size
        if not connection.fetches:
            del self._connections[session]


class DelayedFetch:
    """A fetch that waits for `min_bytes`, for an error, or for its deadline.

    The fetch watches its partitions. When one of them has new data, the fetch checks that partition alone. When there
    is enough data, it reads all partitions in the order of the request.
    """

    __slots__ = (
        "_available",
        "_done",
        "_missing_bytes",
        "_purgatory",
        "_read",
        "_watched",
        "deferred",
        "on_end",
    )

    def __init__(
        self, read: Callable[[], Reply[FetchResponse]], min_bytes: int, purgatory: Purgatory
    ) -> None:
        self.deferred: Deferred[FetchResponse] = Deferred(self._cancel)
        self.on_end: Callable[[], object] | None = None
        """Called once, when the fetch no longer waits."""
        self._read: Callable[[], Reply[FetchResponse]] | None = read
        self._missing_bytes = min_bytes
        self._purgatory = purgatory
        self._watched: dict[WatchedPartition, Callable[[], int]] = {}
        self._available: dict[WatchedPartition, int] = {}
        self._done = False

    @property
    def partitions_count(self) -> int:
        """The number of partitions that the fetch watches."""
        return len(self._watched)

    def watch(self, partition: WatchedPartition, available: Callable[[], int], now: int) -> None:
        """Check `partition` whenever its high watermark moves.

        Args:
            partition: One partition of the request.
            available: Returns how many bytes the request could get from the partition.
            now: What `available` would return now.
        """
        self._watched[partition] = available
        self._available[partition] = now
        self._missing_bytes -= now
        partition.watchers[self] = None

    def partition_changed(self, partition: WatchedPartition) -> None:
        """Complete the fetch if the partition has the missing bytes now, or is not served any more."""
        if self._done:
            return
        if not partition.refusal:
            now = self._watched[partition]()
            self._missing_bytes -= now - self._available[partition]
            self._available[partition] = now
            if self._missing_bytes > 0:
                return
        self.expire()

    def expire(self) -> None:
        """Complete the fetch with the records that there are."""
        if self._done:
            return
        partitions_count = self.partitions_count
        self._end()
        self._purgatory.complete_by_reading(self, partitions_count, self._answer)

    def _answer(self) -> None:
        read, self._read = self._read, None
        if read is not None:  # else the response was cancelled meanwhile
            response = read()
            if isinstance(response, Deferred):
                self.deferred.follow(response)
            else:
                self.deferred.resolve(response)

    def _cancel(self) -> None:
        """Release everything: the response was cancelled."""
        self._read = None
        if not self._done:
            self._end()
            self._purgatory.forget(self)

    def _end(self) -> None:
        self._done = True
        for partition in self._watched:
            partition.watchers.pop(self, None)
        self._watched.clear()
        self._available.clear()
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()
