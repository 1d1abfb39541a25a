"""The order of TLS handshakes: one step of one handshake in each iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class HandshakeTurns:
    """Gives TLS handshakes their turns on the event loop, so that requests are handled between their steps.

    A step computes signatures: 0.2 ms with a P-256 key, 0.7 ms if clients show certificates, 4 ms with RSA of 4096
    bits. A thousand clients that connect at once, as after a restart, would block the event loop for a thousand steps.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._taken = False

    def take(self, loop: asyncio.AbstractEventLoop, step: Callable[[], object]) -> bool:
        """Take a turn.

        Args:
            loop: The event loop.
            step: Called in a later iteration, if another handshake has used the turn of this iteration.

        Returns:
            Whether the caller has the turn of this iteration. `step` is not called then.
        """
        if self._taken:
            self._waiting.append(step)
            return False
        self._taken = True
        loop.call_soon(self._next, loop)
        return True

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting:
            self._taken = False
            return
        loop.call_soon(self._next, loop)
        self._waiting.popleft()()
