"""The end of a producer that the program does not close: the program drops the producer, or ends.

A blocking producer is flushed and closed in both cases. An asyncio producer needs its event loop: the loop closes a
dropped producer while the loop runs; at the end of the program only the lost records can be logged.
"""

from __future__ import annotations

from typing import Any

from headrace.clients.drivers import AsyncDriver, Driver
from headrace.clients.drivers.unclosed import at_exit, closing_tasks, report_exit, warn_unclosed
from headrace.clients.producer.core import ProducerCore
from headrace.errors import HeadraceError

LOOP_ENDED = "its event loop has ended"


class AsyncProducerLifetime:
    """The part of an asyncio producer that handles a missing `close()`."""

    _driver: AsyncDriver
    _core: ProducerCore[Any]

    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # missing if the constructor has raised an exception
        if core is None or core.closed or self._driver.ended:
            return
        closing_tasks.begin(self._driver.loop, self._close_dropped)
        if not self._driver.loop.is_running():
            self._end_of_program(0)
        warn_unclosed(self, "close()", None)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and close; the producer implements it."""
        raise NotImplementedError

    def _close_at_exit(self) -> None:
        at_exit(self, AsyncProducerLifetime._end_of_program)

    def _end_of_program(self, timeout_s: float) -> None:  # noqa: ARG002 - nothing can wait without the event loop
        """Log the records that are lost, at the end of the program: the event loop has ended."""
        if not (self._core.closed or self._driver.closed):
            outstanding = self._core.sender.outstanding
            report_exit(outstanding, outstanding, LOOP_ENDED)

    async def _close_dropped(self) -> None:
        """Flush and close on the event loop, and log the records that are lost."""
        sender = self._core.sender
        unsent, failed, reason = sender.outstanding, sender.failed, LOOP_ENDED
        try:
            await self.close()
        except HeadraceError as error:
            reason = str(error)
        finally:
            report_exit(unsent, sender.failed - failed + sender.outstanding, reason)


class BlockingProducerLifetime:
    """The part of a blocking producer that handles a missing `close()`."""

    _driver: Driver
    _core: ProducerCore[Any]
    _has_owner = False
    """Whether an object of Headrace closes the producer, so that the program need not."""

    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # missing if the constructor has raised an exception
        if core is None or core.closed or self._driver.ended or self._has_owner:
            return
        warn_unclosed(self, "close()", self.close, in_thread=not self._driver.by_hand)

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close; the producer implements it."""
        raise NotImplementedError

    def _close_at_exit(self) -> None:
        at_exit(self, BlockingProducerLifetime._end_of_program)

    def _end_of_program(self, timeout_s: float) -> None:
        """Flush and close at the end of the program, and log the records that are lost."""
        if self._core.closed or self._driver.closed or self._has_owner:
            return
        sender = self._core.sender
        unsent, failed, reason = sender.outstanding, sender.failed, None
        try:
            self.close(timeout_s)
        except HeadraceError as error:
            reason = error
        report_exit(unsent, sender.failed - failed, reason)
