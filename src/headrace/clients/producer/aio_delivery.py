"""The asyncio future of one record: what `headrace.aio.Producer.send` returns."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from headrace.clients.drivers import AsyncDriver
from headrace.clients.engine import UNLIMITED_MS
from headrace.clients.producer.core import ProducerCore
from headrace.clients.producer.delivery import Delivery, RecordMetadata


class DeliveryFuture(Delivery):
    """The result of `send`: whether one record was delivered, and where to."""

    __slots__ = ()

    producer: Fates

    async def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until the record is delivered, and return its partition and offset.

        Args:
            timeout_s: Seconds to wait. None waits until the producer delivers the record or gives it up.

        Raises:
            HeadraceError: The record could not be delivered.
            TransportError: The record is neither delivered nor given up in time.
        """
        if not self.done():
            await self.producer.wait_for(self, timeout_s)
        return self.metadata()

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:  # asyncio only
        return self.result().__await__()


class Fates:
    """Waits for deliveries on behalf of futures.

    A future refers to this object, and not to the producer, so that a future does not keep a dropped producer alive.
    """

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self.core: ProducerCore[DeliveryFuture]

    async def wait_for(self, delivery: Delivery, timeout_s: float | None = None) -> None:
        """Wait until a record is delivered or has failed."""
        limit_ms = UNLIMITED_MS if timeout_s is None else round(timeout_s * 1000)
        await self._driver.run(self.core.delivered(delivery, limit_ms), UNLIMITED_MS)
