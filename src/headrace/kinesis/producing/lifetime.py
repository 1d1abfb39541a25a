"""The end of a producer that the program does not close: the program drops the producer, ends, or forks."""

from __future__ import annotations

from headrace.clients.drivers.unclosed import at_exit, report_exit, warn_unclosed
from headrace.errors import HeadraceError
from headrace.kinesis.producing.aio_engine import AsyncEngine
from headrace.kinesis.producing.blocking_engine import BlockingEngine


class AsyncKinesisLifetime:
    """The part of an asyncio producer that handles a missing `close()`, and forks."""

    _engine: AsyncEngine

    def __del__(self) -> None:
        # Missing if the constructor has raised an exception.
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.closed and engine.connected:
            self._end_of_program(0)
            warn_unclosed(self, "close()", None)

    def disown(self) -> None:
        """Close, in a forked child: the connections and the event loop belong to the parent."""
        self._engine.disown()

    def _close_at_exit(self) -> None:
        at_exit(self, AsyncKinesisLifetime._end_of_program)

    def _end_of_program(self, timeout_s: float) -> None:  # noqa: ARG002 - nothing can wait without the event loop
        """Log the records that are lost: the program's event loop has ended."""
        if not self._engine.closed:
            outstanding = self._engine.outstanding
            report_exit(outstanding, outstanding, "its event loop has ended")


class BlockingKinesisLifetime:
    """The part of a blocking producer that handles a missing `close()`, and forks."""

    _engine: BlockingEngine

    def __del__(self) -> None:
        # Missing if the constructor has raised an exception.
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.closed:
            warn_unclosed(self, "close()", self.close)

    def disown(self) -> None:
        """Close, in a forked child: the thread, the connections and the event loop belong to the parent."""
        self._engine.disown()

    def close(self, *, flush: bool = True) -> None:
        """Flush and close; the producer implements it."""
        raise NotImplementedError

    def _close_at_exit(self) -> None:
        at_exit(self, BlockingKinesisLifetime._end_of_program)

    def _end_of_program(self, timeout_s: float) -> None:
        """Flush and close at the end of the program, and log the records that are lost."""
        if self._engine.closed:
            return
        unsent = self._engine.outstanding
        reason: object = None
        try:
            self._engine.close(flush=True, timeout_s=timeout_s)
        except HeadraceError as error:
            reason = error
        except TimeoutError:
            reason = f"they were not delivered within {timeout_s:.0f} s"
        report_exit(unsent, self._engine.outstanding if reason is None else unsent, reason)
