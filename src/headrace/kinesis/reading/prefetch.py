"""Reads several shards ahead, each in a task of its own, within a budget of bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from headrace.kinesis.reading.budget import Budget
from headrace.kinesis.reading.pacing import RECORD_OVERHEAD_BYTES
from headrace.kinesis.reading.reader import Fetched, Reader
from headrace.kinesis.reading.settings import ReadSettings

_Key = TypeVar("_Key", bound=Hashable)


class ShardArrival(NamedTuple, Generic[_Key]):
    """A fetch of a shard, or the error that ended its reading."""

    key: _Key
    fetched: Fetched
    error: Exception | None = None


@dataclass(slots=True)
class _ShardQueue:
    reader: Reader
    space: asyncio.Event = field(default_factory=asyncio.Event)
    queue: deque[tuple[Fetched, Exception | None, int]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    behind_ms: int | None = None
    is_paused: bool = False
    is_announced: bool = False


class ReadAhead(Generic[_Key]):
    """Keeps fetched records of shards ready.

    A shard whose queue is full is not read until records are taken from it. No record is dropped while its shard is
    registered. Shards take turns.
    """

    def __init__(self, settings: ReadSettings | None = None) -> None:
        """Prepare to read ahead; there are no shards yet."""
        self._budget = Budget(settings or ReadSettings())
        self._lanes: dict[_Key, _ShardQueue] = {}
        self._ready: deque[_Key] = deque()
        self._arrived = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        """The bytes that are read ahead: data, and the overhead of records."""
        return self._budget.held_bytes

    def add(self, key: _Key, reader: Reader) -> None:
        """Start to read a shard. The reader is closed when the shard is removed."""
        assert key not in self._lanes
        lane = self._lanes[key] = _ShardQueue(reader)
        self._budget.join(key)
        lane.task = asyncio.create_task(self._run(key, lane), name=f"read {key}")

    async def remove(self, key: _Key) -> None:
        """Stop reading a shard and drop its ready records. An unknown shard is ignored."""
        lane = self._lanes.pop(key, None)
        if lane is None or lane.task is None:
            return
        self._budget.leave(key)
        lane.task.cancel()
        try:
            await asyncio.wait({lane.task})
        finally:
            await lane.reader.aclose()

    async def aclose(self) -> None:
        """Remove all shards and close their readers."""
        for key in list(self._lanes):
            await self.remove(key)

    def pause(self, key: _Key) -> None:
        """Return nothing of a shard until `resume`. The shard is read until its queue is full."""
        self._lanes[key].is_paused = True

    def resume(self, key: _Key) -> None:
        """Return records of a shard again."""
        lane = self._lanes[key]
        lane.is_paused = False
        if lane.queue:
            self._announce(key, lane)

    def behind_ms(self, key: _Key) -> int | None:
        """Return the distance of a shard's last fetch from its newest records, in milliseconds."""
        return self._lanes[key].behind_ms

    def oldest_ms(self, key: _Key) -> int | None:
        """Return the timestamp of a shard's first ready record, or None if it has none or is unknown."""
        lane = self._lanes.get(key)
        ready = [] if lane is None else [fetched.records for fetched, _, _ in lane.queue]
        return next((records[0].timestamp_ms for records in ready if records), None)

    def take(self) -> ShardArrival[_Key] | None:
        """Return a fetch of the shard whose turn it is, or None if nothing is ready."""
        while self._ready:
            key = self._ready.popleft()
            lane = self._lanes.get(key)
            if lane is None:
                continue
            lane.is_announced = False
            if lane.is_paused or not lane.queue:
                continue
            fetched, error, size = lane.queue.popleft()
            self._budget.free(key, size)
            lane.space.set()  # other shards need no wakeup: each has its own part of the budget
            if lane.queue:
                self._announce(key, lane)
            return ShardArrival(key, fetched, error)
        self._arrived.clear()
        return None

    async def next(self, timeout_ms: float | None = None) -> ShardArrival[_Key] | None:
        """Wait until a fetch is ready, and return it; None if nothing is ready in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while (arrival := self.take()) is None:
                    await self._arrived.wait()
                return arrival
        return None

    async def _run(self, key: _Key, lane: _ShardQueue) -> None:
        ended = False
        while not ended:
            while not self._budget.has_space(key):
                lane.space.clear()
                await lane.space.wait()
            try:
                fetched = await self._fetch(key, lane)
            except Exception as error:  # noqa: BLE001 - the caller of `take` raises it
                self._put(key, lane, Fetched(), error)
                return
            self._put(key, lane, fetched, None)
            ended = fetched.ended

    async def _fetch(self, key: _Key, lane: _ShardQueue) -> Fetched:
        try:
            return await lane.reader.fetch(lambda: self._budget.reserve(key))
        finally:
            self._budget.settle(key, 0)

    def _put(self, key: _Key, lane: _ShardQueue, fetched: Fetched, error: Exception | None) -> None:
        if fetched.behind_ms is not None:
            lane.behind_ms = fetched.behind_ms
        if not fetched.records and not fetched.ended and error is None:
            return
        size = fetched.size_bytes + RECORD_OVERHEAD_BYTES * len(fetched.records)
        self._budget.settle(key, size)
        lane.queue.append((fetched, error, size))
        if not lane.is_paused:
            self._announce(key, lane)

    def _announce(self, key: _Key, lane: _ShardQueue) -> None:
        if not lane.is_announced:
            lane.is_announced = True
            self._ready.append(key)
        self._arrived.set()
