"""Several workers of one group on one event loop, and a record of the values that they handled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import headrace
from headrace.kinesis import Streams
from headrace.workers.handler.context import Context
from headrace.workers.service import Service

WAIT_S = 20.0


class Entry(NamedTuple):
    """One call of a handler."""

    worker: str
    stream: str
    shard: str
    value: str
    epoch: int


class Hand:
    """One worker of a team."""

    def __init__(self, service: Service, app: headrace.App) -> None:
        self.app = app
        self.service = service
        self.task = asyncio.create_task(service.run())

    async def leave(self) -> None:
        """Stop the worker, and wait for its end."""
        self.service.stop()
        await self.task


async def until(condition: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - these things notify no future
            await asyncio.sleep(0.02)


class Team:
    """Workers of one group that read the same streams."""

    def __init__(self, streams: Streams, *, group: str = "billing", **options: Any) -> None:
        self._streams = streams
        self._group = group
        self._options = options
        self.handled: list[Entry] = []
        self.hands: dict[str, Hand] = {}
        self.before: Callable[[Entry], Awaitable[None]] | None = None
        """A function that the handler awaits before it returns."""

    def join(self, name: str, streams: Streams | None = None) -> Hand:
        """Start one more worker."""
        app = headrace.App(group=self._group, drain_timeout_s=5, commit_interval_s=0.1)

        @app.worker(streams or self._streams, **{"concurrency": 8, **self._options})
        async def handle(value: str, context: Context) -> None:
            assert context.shard is not None
            entry = Entry(name, context.topic, context.shard, value, context.epoch)
            if self.before is not None:
                await self.before(entry)
            self.handled.append(entry)

        hand = self.hands[name] = Hand(app.service(), app)
        return hand

    async def leave(self) -> None:
        """Stop all workers, and wait for their ends."""
        for hand in list(self.hands.values()):
            if not hand.task.done():
                await hand.leave()

    @property
    def values(self) -> list[str]:
        """Return the values in the order in which they were handled."""
        return [entry.value for entry in self.handled]

    @property
    def counts(self) -> Counter[str]:
        """Return how often each value was handled."""
        return Counter(self.values)

    def shards_of(self, name: str) -> set[str]:
        """Return the shards of which a worker handled records."""
        return {entry.shard for entry in self.handled if entry.worker == name}

    async def wait_for(self, condition: Callable[[], bool], limit_s: float = WAIT_S) -> None:
        """Wait until a condition holds. If a worker fails, raise its error."""
        async with asyncio.timeout(limit_s):
            while not condition():
                for hand in self.hands.values():
                    if hand.task.done():
                        hand.task.result()
                await asyncio.sleep(0.02)

    async def wait_for_values(self, count: int) -> None:
        """Wait until so many different values were handled."""
        try:
            await self.wait_for(lambda: len(self.counts) >= count)
        except TimeoutError:
            raise AssertionError(f"{len(self.counts)} of {count} were handled") from None
