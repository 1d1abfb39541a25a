"""The requests that wait at a leader until enough replicas have their records."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from headrace.core.replica.progress import Progress

T = TypeVar("T")


class AckQueues(Generic[T]):
    """The waiting requests by their `acks`, each with the end offset of its records.

    All requests with the same `acks` wait for one offset to rise. Their end offsets come in ascending order, as appends
    do, so the first request of a queue is the first one to be acknowledged.
    """

    __slots__ = ("_queues", "progress")

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        """The progress of the replicas."""
        self._queues: dict[int, deque[tuple[int, T]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, acks: int, end_offset: int, waiting: T) -> None:
        """Let a request wait; see `Progress.acknowledged_end` for `acks`."""
        self._queues.setdefault(acks, deque()).append((end_offset, waiting))

    def release(self, own: int, high_watermark: int, *, only_committed: bool = False) -> list[T]:
        """Remove and return the requests that are acknowledged now; see `Progress.acknowledged_end`.

        Args:
            own: The progress of the leader's own replica.
            high_watermark: The present high watermark.
            only_committed: Whether the records have to be committed, whatever the `acks` are.
        """
        released: list[T] = []
        for acks, queue in self._queues.items():
            end = self.progress.acknowledged_end(acks, own, high_watermark)
            if only_committed:
                end = min(end, high_watermark)
            while queue and queue[0][0] <= end:
                released.append(queue.popleft()[1])
        return released

    def clear_above(self, count: int) -> list[T]:
        """Remove and return the requests that wait for more than `count` replicas."""
        waiting = []
        for acks in [each for each in self._queues if each > count]:
            waiting += [request for _, request in self._queues.pop(acks)]
        return waiting

    def clear(self) -> list[T]:
        """Remove and return all requests: they will not be acknowledged."""
        waiting = [each for queue in self._queues.values() for _, each in queue]
        self._queues.clear()
        return waiting
