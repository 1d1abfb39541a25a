"""The fate of a record, to be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from headrace.errors import HeadraceError
from headrace.kinesis.producing.records import Outgoing, SentRecord


class RecordDelivery:
    """What `send` returns: awaited, it gives where the record went, or raises why it went nowhere."""

    __slots__ = ("_future", "noticed", "record")

    def __init__(self) -> None:
        self._future: asyncio.Future[SentRecord] = asyncio.get_running_loop().create_future()
        self.noticed = False
        """Whether the program has asked; a failure that it did not ask for is raised by `flush` or `close`."""
        self.record: Outgoing | None = None
        """What is to be written, until its fate is known."""

    @property
    def reason(self) -> str:
        """Why the last attempt failed; empty where none has, or the fate is known."""
        return "" if self.record is None else self.record.reason

    def done(self) -> bool:
        """Whether the record's fate is known."""
        return self._future.done()

    def result(self) -> SentRecord:
        """Return where the record went.

        Raises:
            HeadraceError: Why it went nowhere.
            InvalidStateError: Its fate is not known yet.
        """
        self.noticed = True
        return self._future.result()

    def exception(self) -> BaseException | None:
        """Return why the record went nowhere, or None."""
        self.noticed = True
        return self._future.exception()

    def __await__(self) -> Generator[Any, None, SentRecord]:
        self.noticed = True
        return asyncio.shield(self._future).__await__()

    async def settled(self) -> None:
        """Wait until the fate is known, whatever it is."""
        if not self._future.done():
            await asyncio.wait([self._future])

    def settle(self, sent: SentRecord | None, error: HeadraceError | None) -> None:
        """Tell it; the producer does."""
        self.record = None
        if error is not None:
            self._future.set_exception(error)
            self._future.exception()  # asyncio would write to the log that nobody has asked
        elif sent is not None:
            self._future.set_result(sent)
