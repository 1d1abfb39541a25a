"""Copies one shard into a topic: each transaction contains the records of one fetch and the position behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.clients.drivers import Target
from headrace.clients.producer.aio import Producer
from headrace.core.lease.checkpoint import SHARD_END, Checkpoint
from headrace.core.lease.lease import Lease
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    HeadraceError,
    ProducerFencedError,
    TransactionError,
    TransportError,
)
from headrace.kinesis.bridge.names import check_topic
from headrace.kinesis.bridge.positions import BridgePositions, claim_of
from headrace.kinesis.client.backoff import JitteredBackoff
from headrace.kinesis.reading.reader import Fetched, Reader
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.shards import ShardInfo

HEADER_STREAM: Final = "kinesis.stream"
HEADER_SHARD: Final = "kinesis.shard"
HEADER_SEQUENCE: Final = "kinesis.sequence"
HEADER_SUB_SEQUENCE: Final = "kinesis.sub_sequence"
HEADER_HASH_KEY: Final = "kinesis.explicit_hash_key"

OpenReader = Callable[[Checkpoint], Reader]
_LARGEST_RECORD: Final = 11 << 20
_ATTEMPTS: Final = 8
_FORGOTTEN: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Errors for a transactional id that the brokers have removed. Brokers do that after a week without use."""


@dataclass(slots=True)
class CopyProgress:
    """The number of records and bytes that a bridge has copied so far."""

    records: int = 0
    bytes: int = 0
    behind_ms: dict[str, int | None] = field(default_factory=dict)
    """The distance of each shard's last fetch from its newest records, in milliseconds; None if it is unknown."""
    ended: set[str] = field(default_factory=set)
    """The closed shards that are copied to their ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The topic that a bridge writes to."""

    target: Target
    topic: str
    name: str
    """The name of the bridge."""
    properties: dict[str, Any]
    """The properties of the producers that write to the topic."""
    positions: BridgePositions
    client_properties: Mapping[str, Any] = field(default_factory=dict)

    async def check(self) -> None:
        """Check that the topic exists: brokers may create it again when it is written to, with too few partitions.

        Raises:
            ConfigError: The topic does not exist.
        """
        with suppress(TransportError):
            await check_topic(self.target, self.topic, self.client_properties)

    def producer(self, stream: str, shard: str) -> Producer:
        """Return a producer for the records of a shard. It fences earlier producers of the shard."""
        properties = {"max_request_size": _LARGEST_RECORD, "linger_ms": 0, **self.properties}
        return Producer(
            self.target,
            serde="bytes",
            key_serde="bytes",
            recreate_topics=False,
            transactional_id=self.transactional_id(stream, shard),
            **properties,
        )

    def transactional_id(self, stream: str, shard: str) -> str:
        """Return the transactional id of a shard. A process that takes it over fences the process before it."""
        return f"__bridge.{self.name}.{stream}.{shard}"


class ShardCopy:
    """Copies one shard, from a lease on."""

    def __init__(
        self,
        destination: Destination,
        lease: Lease,
        open_reader: OpenReader,
        progress: CopyProgress,
        *,
        valid: Callable[[], bool],
        committed: Callable[[Checkpoint, int], object],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float],
    ) -> None:
        """Prepare a copy; nothing is connected yet.

        Args:
            destination: The topic that receives the records.
            lease: The shard's lease, with the checkpoint from which a shard without a position is copied.
            open_reader: Opens a reader behind a checkpoint.
            progress: The counters of the bridge.
            valid: Returns whether the lease is still owned. Without it no shard is taken over.
            committed: Called after each committed fetch, with the position and the number of bytes.
            pause: Sleeps for a number of seconds.
            chance: Returns a random number from 0 to 1.
        """
        self._destination = destination
        self._lease = lease
        self._stream, self._shard = lease.key.stream, lease.key.shard
        self._open_reader = open_reader
        self._progress = progress
        self._valid = valid
        self._committed = committed
        self._pause = pause
        self._backoff = JitteredBackoff(chance)
        self._failures = 0
        self._claim = claim_of(lease)
        self._has_begun = False
        self._stopping = asyncio.Event()
        self._reader: Reader | None = None
        self.position: Checkpoint | None = None
        """The committed position; None until it is known."""
        self.children: Sequence[ShardInfo] = ()
        """The children of the closed shard, if Kinesis named them."""

    def stop(self) -> None:
        """Begin nothing new: `run` returns after the open transaction."""
        self._stopping.set()

    def restart(self) -> None:
        """Restart the reader of the shard."""
        if self._reader is not None:
            self._reader.restart()

    async def run(self) -> bool:
        """Copy until the shard ends or `stop`; return whether it has ended.

        Raises:
            ConfigError: Another process copies the shard by a lease of another store, or the topic does not exist any
                more.
            HeadraceError: The shard cannot be copied, and a retry does not help.
        """
        while not self._stopping.is_set() and self._valid():
            try:
                async with self._destination.producer(self._stream, self._shard) as producer:
                    return await self._copy(producer)
            except HeadraceError as error:
                self._failures += 1
                if self._failures >= _ATTEMPTS or not _is_worth_a_retry(error):
                    raise self._explained(error) from error
                await self._destination.check()
            await self._pause(self._backoff.next_ms() / 1000)
        return False

    async def _copy(self, producer: Producer) -> bool:
        """Continue from the committed position, whatever this process has done before."""
        positions = self._destination.positions
        position, rivals = await positions.take_over(
            producer, self._stream, self._shard, self._claim
        )
        if self._has_begun:
            self._check_alone(rivals)
        self._has_begun = True
        if position is None:
            position = self._lease.checkpoint
            async with producer.transaction():
                await positions.write(producer, self._stream, self._shard, position)
        self.position = position
        self._reader = reader = self._open_reader(position)
        try:
            while not position.is_end and not self._stopping.is_set():
                fetched = await self._fetch(reader)
                if fetched is None:
                    break
                position = await self._commit(producer, fetched, position)
        finally:
            self._reader = None
            await reader.aclose()
        if position.is_end:
            self._progress.ended.add(self._shard)
            self._progress.behind_ms.pop(self._shard, None)
        return position.is_end

    def _check_alone(self, rivals: Sequence[str]) -> None:
        """Check that a process which has fenced this one had the lease before, and was only slow to notice its end.

        The claim of such a process is smaller than this process's claim. A greater claim comes from another lease
        store. Seen from there, this process has the smaller claim. So the process with the smaller claim gives way, and
        one of the two goes on.
        """
        if any(rival > self._claim for rival in rivals):
            name = self._destination.name
            raise ConfigError(
                f"another bridge of the name {name!r} has taken {self._shard} over, though this process owns its "
                "lease. Processes that share a stream need one lease store (--leases); others need different names "
                "(--name)"
            )

    async def _fetch(self, reader: Reader) -> Fetched | None:
        """Read, unless `stop` is called. Records that were not returned are read again."""
        fetching = asyncio.ensure_future(reader.fetch())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({fetching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return fetching.result() if fetching.done() else None
        finally:
            for task in (fetching, stopping):
                task.cancel()
            await asyncio.gather(fetching, stopping, return_exceptions=True)

    async def _commit(
        self, producer: Producer, fetched: Fetched, position: Checkpoint
    ) -> Checkpoint:
        if fetched.ended:
            position = SHARD_END
            self.children = fetched.children
        elif fetched.records:
            position = fetched.records[-1].checkpoint
        if fetched.records or fetched.ended:
            async with producer.transaction():
                for record in fetched.records:
                    await self._send(producer, record)
                await self._destination.positions.write(
                    producer, self._stream, self._shard, position
                )
            self._failures = 0
            self._backoff.reset()
        self.position = position
        self._progress.records += len(fetched.records)
        self._progress.bytes += fetched.size_bytes
        self._progress.behind_ms[self._shard] = fetched.behind_ms
        self._committed(position, fetched.size_bytes)
        return position

    async def _send(self, producer: Producer, record: KinesisRecord) -> None:
        _ = await producer.send(  # the transaction's result is the record's result
            self._destination.topic,
            record.data,
            key=record.partition_key.encode(),
            headers=headers_of(record),
            timestamp_ms=record.timestamp_ms,
        )

    def _explained(self, error: HeadraceError) -> HeadraceError:
        cause = error.__cause__ if isinstance(error, TransactionError) else error
        if isinstance(cause, ApiError) and cause.code in {
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.RECORD_LIST_TOO_LARGE,
        }:
            return ApiError.for_code(
                cause.code,
                f"a record of {self._shard} is too large for the topic {self._destination.topic}: raise its "
                f"max.message.bytes (`headrace topic alter {self._destination.topic} -c max.message.bytes=11534336`) "
                f"and start the bridge again ({cause.message})",
            )
        return error


def headers_of(record: KinesisRecord) -> list[tuple[str, bytes]]:
    """Return the headers of a copied record, which contain its origin."""
    headers = [
        (HEADER_STREAM, record.stream.encode()),
        (HEADER_SHARD, record.shard.encode()),
        (HEADER_SEQUENCE, record.sequence_number.encode()),
    ]
    if record.sub_sequence is not None:
        headers.append((HEADER_SUB_SEQUENCE, str(record.sub_sequence).encode()))
    if record.explicit_hash_key is not None:
        headers.append((HEADER_HASH_KEY, record.explicit_hash_key.encode()))
    return headers


def _is_worth_a_retry(error: HeadraceError) -> bool:
    """Whether a new producer that continues from the committed position may succeed."""
    if isinstance(error, ProducerFencedError):
        return True
    cause = error.__cause__ if isinstance(error, TransactionError) else error
    if isinstance(cause, ApiError):
        return cause.retriable or cause.code in _FORGOTTEN
    return isinstance(error, TransactionError | TransportError)
