"""The end of a consumer that the program does not close: the program drops the consumer, or ends.

A blocking consumer commits what is finished and leaves its group in both cases. An asyncio consumer needs its event
loop: the loop closes a dropped consumer while the loop runs, and nothing can be done at the end of the program.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from headrace.clients.consumer.departure import AtClose
from headrace.clients.drivers import AsyncDriver, Driver
from headrace.clients.drivers.unclosed import at_exit, closing_tasks, warn_unclosed

CLOSE_TIMEOUT_MS: Final = 10_000
"""Milliseconds that `close` may take to commit and to leave the group, if the program passes no timeout."""


class AsyncConsumerLifetime:
    """The part of an asyncio consumer that handles a missing `close()`."""

    _driver: AsyncDriver
    _closed: bool

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._driver.ended:
            close = partial(self._close, "finished", CLOSE_TIMEOUT_MS)
            closing_tasks.begin(self._driver.loop, close)
            warn_unclosed(self, "close()", None)

    async def _close(self, at_close: AtClose, timeout_ms: int) -> None:
        raise NotImplementedError

    def _close_at_exit(self) -> None:
        """Do nothing: at the end of the program the consumer's event loop has ended."""


class BlockingConsumerLifetime:
    """The part of a blocking consumer that handles a missing `close()`."""

    _driver: Driver
    _closed: bool

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._driver.ended:
            close = partial(self._close, "finished", CLOSE_TIMEOUT_MS)
            warn_unclosed(self, "close()", close, in_thread=not self._driver.by_hand)

    def _close(self, at_close: AtClose, timeout_ms: int) -> None:
        raise NotImplementedError

    def _close_at_exit(self) -> None:
        at_exit(self, BlockingConsumerLifetime._end_of_program)

    def _end_of_program(self, timeout_s: float) -> None:
        """Commit what is finished, and leave the group, at the end of the program."""
        if not self._driver.closed:
            self._close("finished", round(timeout_s * 1000))
