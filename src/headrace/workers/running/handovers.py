"""Counts the steps that the end of a worker must not interrupt: revocations, and records that are committed first."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Handovers:
    """A counter of running steps. A step is an `async with` block."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    async def __aenter__(self) -> None:
        self._count += 1
        self._none.clear()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    @property
    def running(self) -> bool:
        """Whether a step runs."""
        return self._count > 0

    async def none(self) -> None:
        """Wait until no step runs. No step runs when the call returns."""
        while self._count:
            await self._none.wait()
