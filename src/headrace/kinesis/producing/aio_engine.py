"""The engine of the producer on an event loop: it accepts records, bounds the buffer, and settles deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Final

from headrace.errors import ClosedError, HeadraceError
from headrace.forking import FORKED
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsClient, AwsSettings
from headrace.kinesis.producing.aio_delivery import RecordDelivery
from headrace.kinesis.producing.core import RecordOutcome
from headrace.kinesis.producing.records import outgoing
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.producing.stream_sender import StreamSender, now_ms

_KEPT_FAILURES: Final = 1_000
"""The number of failures that the engine keeps for `flush`."""


class AsyncEngine:
    """Sends the records of one producer, on the event loop that runs `send`."""

    def __init__(self, aws: AwsSettings, settings: ProducerSettings) -> None:
        """Prepare an engine; it connects with the first record.

        Args:
            aws: How to reach AWS.
            settings: How the producer batches and retries.
        """
        self.closed = False
        self.forked = False
        """Whether this process is a forked child of the engine's process."""
        self.failures: list[tuple[RecordDelivery, HeadraceError]] = []
        """Failures since the last `flush`, oldest first. `flush` raises the first one that the program has not seen."""
        self.buffered = 0
        """Bytes of the records that are not settled."""
        self.owner: object = None
        """The producer, which stays alive until its last record is settled."""
        self._aws = aws
        self._settings = settings
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: AwsClient | None = None
        self._streams: dict[str, StreamSender] = {}
        self._turns = asyncio.Lock()
        """Held by the `send` that waits for space. Later calls of `send` wait for the lock, in their order."""
        self._freed = asyncio.Event()
        self._pending: set[RecordDelivery] = set()
        self._flushes = 0
        """The number of running calls of `flush`."""

    @property
    def outstanding(self) -> int:
        """The number of records that are not settled."""
        return len(self._pending)

    @property
    def connected(self) -> bool:
        """Whether a client of AWS was opened."""
        return self._client is not None

    def disown(self) -> None:
        """Close, in a forked child: the connections and the event loop belong to the parent."""
        self.closed = self.forked = True

    async def send(
        self,
        stream: str,
        data: bytes,
        partition_key: str,
        explicit_hash_key: str | int | None,
    ) -> RecordDelivery:
        """Accept a record; see `headrace.kinesis.Producer.send`."""
        _check_kinds(stream, data, partition_key)
        if self.closed:
            raise self._closed_error()
        sender = self._streams.get(stream) or await self._open(stream)
        await self._wait_for_space(len(data))
        if self.closed:
            raise self._closed_error()
        record = outgoing(
            bytes(data),
            partition_key,
            explicit_hash_key,
            record_bytes=self._settings.record_bytes,
            now_ms=now_ms(),
        )
        delivery = record.ticket = RecordDelivery()
        delivery.record = record
        self.buffered += record.size
        self._pending.add(delivery)
        sender.core.add(record)
        sender.soon()
        return delivery

    async def flush(self) -> None:
        """Wait until all records are settled; see `headrace.kinesis.Producer.flush`."""
        if self.forked:
            raise self._closed_error()
        pending = list(self._pending)
        self._flushes += 1
        self._hurry()
        try:
            for delivery in pending:
                await delivery.settled()
        finally:
            self._flushes -= 1
            self._hurry()
        failures, self.failures = self.failures, []
        for delivery, error in failures:
            if not delivery.noticed:
                raise error

    def _hurry(self) -> None:
        for sender in self._streams.values():
            sender.core.flushing = self._flushes > 0
            sender.soon()

    async def close(self, *, flush: bool) -> None:
        """Flush if `flush` is true, and disconnect."""
        if self.forked:
            return
        self.closed = True
        try:
            if flush:
                await self.flush()
        finally:
            for sender in self._streams.values():
                await sender.end()
            self._freed.set()
            async with self._opening:  # a pending `_open` ends first, and finds the engine closed
                await self._stack.aclose()

    async def _open(self, name: str) -> StreamSender:
        async with self._opening:
            if self.closed:
                raise self._closed_error()
            if self._client is None:
                self._client = await self._stack.enter_async_context(
                    open_client(self._aws, "kinesis")
                )
            return self._streams.setdefault(
                name, StreamSender(name, self._settings, self._client, self._settle)
            )

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"this producer {FORKED}" if self.forked else "the producer is closed")

    async def _wait_for_space(self, size: int) -> None:
        """Wait until the buffer has space for a record. An empty buffer has space for every record."""
        async with self._turns:
            while self.buffered and self.buffered + size > self._settings.buffer_bytes:
                self._freed.clear()
                await self._freed.wait()
                if self.closed:
                    raise self._closed_error()

    def _settle(self, outcomes: Iterable[RecordOutcome]) -> None:
        for record, sent, error in outcomes:
            delivery: RecordDelivery = record.ticket
            self.buffered -= record.size
            self._pending.discard(delivery)
            delivery.settle(sent, error)
            if error is not None and not delivery.noticed:
                self._keep_failure(delivery, error)
        self._freed.set()

    def _keep_failure(self, delivery: RecordDelivery, error: HeadraceError) -> None:
        """Keep a failure for `flush`. The list is bounded, because some programs never call `flush`."""
        if len(self.failures) >= _KEPT_FAILURES:
            self.failures = [each for each in self.failures if not each[0].noticed]
        if len(self.failures) < _KEPT_FAILURES:
            self.failures.append((delivery, error))


def _check_kinds(stream: object, data: object, partition_key: object) -> None:
    if not isinstance(stream, str):
        raise TypeError(
            f"stream is of type {type(stream).__name__}: pass the name or the ARN of a stream as str"
        )
    if not isinstance(data, bytes | bytearray | memoryview) or not isinstance(partition_key, str):
        raise TypeError(
            f"data is of type {type(data).__name__} and partition_key of type {type(partition_key).__name__}: pass "
            "bytes, as text.encode() returns them, and str"
        )
