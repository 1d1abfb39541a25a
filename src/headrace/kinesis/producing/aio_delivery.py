"""The asyncio future of one record: what `headrace.kinesis.Producer.send` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from headrace.errors import HeadraceError
from headrace.kinesis.producing.records import Outgoing, SentRecord


class RecordDelivery:
    """The result of `send`. Awaited, it returns the record's shard and sequence number, or raises an error."""

    __slots__ = ("_future", "noticed", "record")

    def __init__(self) -> None:
        self._future: asyncio.Future[SentRecord] = asyncio.get_running_loop().create_future()
        self.noticed = False
        """Whether the program has read the result. If not, `flush` or `close` raises a failure."""
        self.record: Outgoing | None = None
        """The record; None when it is delivered or given up."""

    @property
    def reason(self) -> str:
        """The error of the last attempt; empty if there was none, or if the result is known."""
        return "" if self.record is None else self.record.reason

    def done(self) -> bool:
        """Whether the record is delivered or given up."""
        return self._future.done()

    def result(self) -> SentRecord:
        """Return the record's shard and sequence number.

        Raises:
            HeadraceError: The record could not be delivered.
            InvalidStateError: The record is neither delivered nor given up yet.
        """
        self.noticed = True
        return self._future.result()

    def exception(self) -> BaseException | None:
        """Return the error for which the record was given up, or None."""
        self.noticed = True
        return self._future.exception()

    def __await__(self) -> Generator[Any, None, SentRecord]:
        self.noticed = True
        return asyncio.shield(self._future).__await__()

    async def settled(self) -> None:
        """Wait until the record is delivered or given up."""
        if not self._future.done():
            await asyncio.wait([self._future])

    def settle(self, sent: SentRecord | None, error: HeadraceError | None) -> None:
        """Set the result; the producer calls this."""
        self.record = None
        if error is not None:
            self._future.set_exception(error)
            self._future.exception()  # so that asyncio does not log an exception that was never read
        elif sent is not None:
            self._future.set_result(sent)
