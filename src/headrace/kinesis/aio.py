"""The asyncio producer of records in Kinesis streams."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from headrace.forking import disown_in_children
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.producing.aio_delivery import RecordDelivery
from headrace.kinesis.producing.aio_engine import AsyncEngine
from headrace.kinesis.producing.lifetime import AsyncKinesisLifetime
from headrace.kinesis.producing.settings import ProducerSettings

__all__ = ["Producer", "RecordDelivery"]


class Producer(AsyncKinesisLifetime):
    """Writes records to streams; an asynchronous context manager that flushes and closes.

    Records of one partition key are written in the order of `send`, also if Kinesis refuses some of them and they are
    retried. A request whose answer is lost is sent again, so a record may be written twice (at least once). No record
    is lost without an error.
    One producer may be used by many tasks of one event loop.
    """

    def __init__(
        self,
        aws: AwsSettings | None = None,
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        """Prepare a producer; it connects with the first record.

        Args:
            aws: How to reach AWS. Missing values come from the environment, AWS's configuration files and roles.
            settings: How the producer batches, retries and gives up.
            options: Single settings by name, such as `linger_ms=50` or `aggregate_bytes=51_200`, instead of `settings`.

        Raises:
            ConfigError: A setting has an invalid value.
        """
        self.settings = settings or ProducerSettings(**options)
        self._engine = AsyncEngine(aws or AwsSettings(), self.settings)
        self._engine.owner = self  # asyncio only
        disown_in_children(self)
        self._close_at_exit()

    @property
    def outstanding(self) -> int:
        """The number of records that are neither delivered nor given up."""
        return self._engine.outstanding

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    async def send(
        self,
        stream: str,
        data: bytes,
        *,
        partition_key: str,
        explicit_hash_key: str | int | None = None,
    ) -> RecordDelivery:
        """Accept a record for delivery; wait only while the buffer is full.

        Args:
            stream: Name or ARN of the stream.
            data: The record's data.
            partition_key: Determines the shard. Records of one key keep their order.
            explicit_hash_key: Determines the shard instead of the key.

        Returns:
            The record's delivery. Its result is a `SentRecord`, or the error for which the record was given up.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: Credentials or the region are missing.
            KinesisError: Kinesis does not accept such a record: the record or its key is too large.
            TypeError: `data` is not bytes, or a name or key is not text.
        """
        return await self._engine.send(stream, data, partition_key, explicit_hash_key)

    async def flush(self) -> None:
        """Wait until all records of earlier `send` calls are delivered or given up.

        Raises:
            HeadraceError: The first failure since the last flush that the program has not seen.
        """
        await self._engine.flush()

    async def close(self, *, flush: bool = True) -> None:
        """Deliver the pending records, and disconnect.

        Args:
            flush: False gives up the pending records.

        Raises:
            HeadraceError: The error that `flush` raises.
        """
        await self._engine.close(flush=flush)
