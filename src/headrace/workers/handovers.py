"""Counts the steps that the end of a worker must not interrupt: revocations, and records that are committed first."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Handovers:
    """Counts them (`async with`), and lets others wait until there are none."""

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
    def under_way(self) -> bool:
        """Whether there are any."""
        return self._count > 0

    async def none(self) -> None:
        """Wait until there are none; when it returns there are none."""
        while self._count:
            await self._none.wait()
