"""The engine of a blocking producer: the asyncio engine, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio

from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.producing.aio_engine import AsyncEngine
from headrace.kinesis.producing.blocking_delivery import Delivery
from headrace.kinesis.producing.loop_thread import LoopThread
from headrace.kinesis.producing.settings import ProducerSettings


class BlockingEngine:
    """Calls an asyncio engine from other threads, and waits for the results."""

    def __init__(self, aws: AwsSettings, settings: ProducerSettings) -> None:
        self._engine = AsyncEngine(aws, settings)
        self._thread = LoopThread()

    @property
    def closed(self) -> bool:
        return self._thread.closed

    @property
    def outstanding(self) -> int:
        return self._engine.outstanding

    def disown(self) -> None:
        """Close, in a forked child: the loop and its thread belong to the parent."""
        self._thread.disown()
        self._engine.disown()

    def send(
        self,
        stream: str,
        data: bytes,
        partition_key: str,
        explicit_hash_key: str | int | None,
    ) -> Delivery:
        """Accept a record; see `headrace.kinesis.blocking.Producer.send`."""
        sending = self._engine.send(stream, data, partition_key, explicit_hash_key)
        return Delivery(self._thread.run(sending), self._thread)

    def flush(self) -> None:
        """Wait until all records are settled; see `headrace.kinesis.blocking.Producer.flush`."""
        self._thread.run(self._engine.flush())

    def close(self, *, flush: bool, timeout_s: float | None = None) -> None:
        """Flush if `flush` is true, disconnect, and end the thread.

        Args:
            flush: Whether to deliver the pending records.
            timeout_s: The time limit in seconds, after which the remaining records are given up. None: no limit.

        Raises:
            HeadraceError: The first failure that the program has not seen.
            TimeoutError: The time limit has passed.
        """
        if self._thread.closed:
            return
        try:
            self._thread.run(asyncio.wait_for(self._engine.close(flush=flush), timeout_s))
        finally:
            self._thread.close()
