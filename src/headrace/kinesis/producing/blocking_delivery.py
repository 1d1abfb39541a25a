"""The blocking future of one record: what `headrace.kinesis.blocking.Producer.send` returns."""

from __future__ import annotations

import asyncio

from headrace.errors import TransportError
from headrace.kinesis.producing.aio_delivery import RecordDelivery
from headrace.kinesis.producing.loop_thread import LoopThread
from headrace.kinesis.producing.records import SentRecord


class Delivery:
    """The result of `send`: whether one record was delivered, and where to."""

    __slots__ = ("_delivery", "_thread")

    def __init__(self, delivery: RecordDelivery, thread: LoopThread) -> None:
        self._delivery = delivery
        self._thread = thread

    def done(self) -> bool:
        """Whether the record is delivered or given up."""
        return self._delivery.done()

    def result(self, timeout_s: float | None = None) -> SentRecord:
        """Wait until the record is delivered, and return its shard and sequence number.

        Args:
            timeout_s: Seconds to wait. None waits until the producer delivers the record or gives it up.

        Raises:
            HeadraceError: The record could not be delivered.
            TransportError: The record is neither delivered nor given up in time.
        """
        self._wait(timeout_s)
        return self._delivery.result()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait until the record is delivered or given up, and return the error, or None.

        Args:
            timeout_s: Seconds to wait. None waits until the producer delivers the record or gives it up.

        Raises:
            TransportError: The record is neither delivered nor given up in time.
        """
        self._wait(timeout_s)
        return self._delivery.exception()

    def _wait(self, timeout_s: float | None) -> None:
        self._delivery.noticed = True
        if self._delivery.done():
            return
        try:
            self._thread.run(asyncio.wait_for(self._delivery.settled(), timeout_s))
        except TimeoutError:
            reason = f"; last error: {self._delivery.reason}" if self._delivery.reason else ""
            raise TransportError(
                f"the record was neither delivered nor given up within {timeout_s} s; the producer retries it until "
                f"delivery_timeout_ms has passed{reason}"
            ) from None
