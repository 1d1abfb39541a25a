"""The asyncio future of one record: what `headrace.aio.Producer.send` returns."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from headrace.clients.drivers import AsyncDriver
from headrace.clients.engine import UNLIMITED_MS
from headrace.clients.producer.core import ProducerCore
from headrace.clients.producer.delivery import Delivery, RecordMetadata


class DeliveryFuture(Delivery):
    """The fate of one record, to be waited for."""

    __slots__ = ()

    producer: Fates

    async def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the record's fate, and return where it went.

        Args:
            timeout_s: Seconds to wait; None is until the producer delivers it or gives it up.

        Raises:
            HeadraceError: Why the record was given up.
            TransportError: Its fate is not known in time.
        """
        if not self.done():
            await self.producer.wait_for(self, timeout_s)
        return self.metadata()

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:  # asyncio only
        return self.result().__await__()


class Fates:
    """Waits for the fates of records; a record under way must not keep a producer alive that the program drops."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self.core: ProducerCore[DeliveryFuture]

    async def wait_for(self, delivery: Delivery, timeout_s: float | None = None) -> None:
        """Wait until a record's fate is known."""
        limit_ms = UNLIMITED_MS if timeout_s is None else round(timeout_s * 1000)
        await self._driver.run(self.core.delivered(delivery, limit_ms), UNLIMITED_MS)
