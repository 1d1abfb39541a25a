"""A consumer base class: the program processes batches of messages and makes its own checkpoints."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar, copy_context
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.errors import ClosedError, ConfigError, LeaseLostError
from headrace.forking import FORKED, disown_in_children
from headrace.kinesis.client.streams import stream_name
from headrace.kinesis.group.owners import process_owner
from headrace.kinesis.injected import InjectedClients, ShardLog
from headrace.kinesis.messages import Message, bound, message_of, place_of
from headrace.kinesis.stream import LATEST
from headrace.kinesis.stream import kinesis as streams_of
from headrace.stream_record import StreamRecord
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.kinesis.client.settings import AwsClient, AwsSettings
    from headrace.kinesis.group.consumer import StreamConsumer
    from headrace.kinesis.leases.store import LeaseStore

__all__ = ["Consumer", "Message"]

DRAIN_TIMEOUT_S: Final = 30.0
LEAVE_TIMEOUT_S: Final = 40.0
"""The time limit in seconds for giving up the shards, with the batch in progress and calls to the lease store."""
FETCH_TIMEOUT_S: Final = 1.0
_processing: Final[ContextVar[Consumer | None]] = ContextVar("_processing", default=None)
"""The consumer whose batch the present task processes. Tasks that `process_batch` starts inherit it."""

_log: Final = logging.getLogger("headrace.kinesis")


class Consumer:
    """Reads the shards of a stream that this member of the group owns; a subclass implements `process_batch`.

        class Billing(Consumer):
            async def process_batch(self, batch: list[Message]) -> None: ...

        await Billing("orders", "billing", table="leases").run()

    A batch contains messages of one shard. When `process_batch` returns, the batch is checkpointed. An exception of
    `process_batch` ends `run`, and the batch is delivered again. If the shard of a batch is lost meanwhile, the batch
    is cancelled. `headrace.App` also retries, writes dead letters, and processes several records at the same time.
    """

    _source: StreamConsumer | None = None
    _work: asyncio.Task[None] | None = None
    """The task that processes the batch; None if no batch is processed."""
    _leaving: asyncio.Task[None] | None = None
    """The task that gives up the shards; None before `clean`."""
    _cleaning: asyncio.Task[None] | None = None
    """The task that waits for `_leaving` and for `run`, and then disconnects; None before `clean`."""
    _batch: list[StreamRecord]
    """The last fetched batch, until it is checkpointed to its end."""
    _ran: asyncio.Event
    """Set while `run` neither fetches nor processes."""
    _stopped = False
    _forked = False

    def __init__(
        self,
        stream: str,
        group: str,
        *,
        owner: str | None = None,
        table: str = "headrace-leases",
        initial_checkpoint: str | datetime = LATEST,
        lock_duration: int = 60_000,
        wait_time_acquire: int = 5_000,
        batch_size: int = 100,
        kinesis: AwsClient | None = None,
        dynamodb: AwsClient | None = None,
        aws: AwsSettings | None = None,
        leases: str | LeaseStore | None = None,
        poll_ms: int = 1_000,
        logger: Any = None,
    ) -> None:
        """Prepare a consumer; it connects with the first fetch.

        Args:
            stream: Name or ARN of the stream.
            group: The group's name. Members of a group share the shards; every group receives every record.
            owner: The name of this process in the table and in `headrace kinesis describe`; None: host and process id.
            table: The lease table in DynamoDB; it is created if it is missing.
            initial_checkpoint: The start of a new group: LATEST, TRIM_HORIZON, AFTER:<sequence number>, or a time.
            lock_duration: The time in milliseconds after which other members take the shards of a silent member.
            wait_time_acquire: The time between two searches for free shards, in milliseconds.
            batch_size: The most messages of a batch.
            kinesis: A client of aiobotocore, or what `session.create_client("kinesis")` returns; None opens one.
            dynamodb: The same for DynamoDB.
            aws: Region, keys and endpoint of the clients that the consumer opens.
            leases: The URL of another lease store, such as `sqlite:///leases.db`, or a store; None: `table`.
            poll_ms: The time between reads of a shard without new records, in milliseconds.
            logger: A logger of `logging`, or one with a `bind` method, as structlog's; None is `headrace.kinesis`.

        Raises:
            ConfigError: An argument is not allowed, or contradicts another.
        """
        self.stream, self.group = stream, group
        self.owner = owner or process_owner("consumer")
        self._batch_size = _at_least_one(batch_size)
        self._given = InjectedClients(aws, kinesis=kinesis, dynamodb=dynamodb)
        self._streams = streams_of(
            stream,
            aws=self._given.settings,
            start=initial_checkpoint,
            leases=leases or f"dynamodb://{table}",
            lease_duration_ms=lock_duration,
            scan_ms=wait_time_acquire,
            poll_ms=poll_ms,
            owner=self.owner,
        )
        fields = {"table": table, "stream": stream, "group": group, "owner": self.owner}
        self._logger = bound(_log if logger is None else logger, **fields)
        self._shard_log, self._batch = ShardLog(self._logger), []
        self._done, self._ran = asyncio.Event(), asyncio.Event()
        self._ran.set()
        disown_in_children(self)

    def disown(self) -> None:
        """Close, in a forked child: the leases belong to the parent."""
        self._stopped = self._forked = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.clean()

    # To be overridden

    async def process_batch(self, batch: list[Message]) -> None:
        """Process messages of one shard, in order. Subclasses implement it."""
        raise NotImplementedError("derive a class from Consumer that implements process_batch")

    # To be called

    async def run(self) -> None:
        """Fetch, process and checkpoint until `stop` is called, then give up the shards."""
        self._ran.clear()
        try:
            while not self._stopped:
                batch = await self.fetch()
                if batch:
                    await self._process(batch)
        finally:
            self._ran.set()
            await self.clean()

    def stop(self) -> None:
        """Let `run` end after the batch in progress."""
        self._stopped = True

    async def fetch(self) -> list[Message]:
        """Return messages of one shard, after waiting one second for the first; often none.

        This consumer does not return a message twice. A message that is not covered by a checkpoint is delivered again
        after a restart, or by another member.

        Raises:
            ClosedError: The consumer is closed.
            KinesisError: The stream cannot be read.
        """
        self._check_open()
        source = await self._begun()
        self._end_batch()
        batch = await source.poll(FETCH_TIMEOUT_S, self._batch_size)
        if self._cleaning is not None:
            return []  # the shards were given up meanwhile
        self._batch = batch
        self._shard_log.look(source)
        if batch:
            self._logger.debug(
                "batch fetched",
                shard_id=batch[0].shard,
                messages=len(batch),
            )
        return [message_of(record) for record in batch]

    async def checkpoint(self, message_id: str) -> bool:
        """Mark a message and all earlier ones of its shard as processed, and wait until this is stored.

        Returns:
            True when the checkpoint is stored, or a later one is. False if this member has lost the shard: messages
            behind the last checkpoint are delivered again, here or to another member.

        Raises:
            ConfigError: The argument is not the id of a message.
            ClosedError: The process is a forked child of the consumer's process.
        """
        name, offset = place_of(message_id, stream_name(self.stream))
        if self._forked:
            raise ClosedError(f"{self.owner}: the consumer {FORKED}")
        if self._source is None or not await self._stored(self._source, name, offset + 1):
            self._logger.warning(
                "checkpoint refused: this member has lost the shard", id=message_id
            )
            return False
        self._logger.debug("checkpoint stored", id=message_id)
        if self._batch and _name(self._batch[-1]) == name and self._batch[-1].offset <= offset:
            self._end_batch()
        return True

    async def clean(self) -> None:
        """Give up all shards with their checkpoints, and disconnect. It may be called again.

        A batch that `run` is processing is finished first, within half a minute. `process_batch` may call this method:
        then nothing waits for the batch.
        """
        if self._forked:
            return
        self._stopped = True
        within = _processing.get() is self
        if within or (self._cleaning is None and self._work is None):
            self._end_batch()
        if self._leaving is None or self._cleaning is None:
            self._leaving = asyncio.create_task(self._leave())
            self._cleaning = asyncio.create_task(self._end(self._leaving))
        # `process_batch` must not wait for `_cleaning`, which waits for `run` and so for `process_batch`.
        await asyncio.shield(self._leaving if within else self._cleaning)

    # Implementation

    async def _leave(self) -> None:
        if self._source is not None:
            await self._source.leave(LEAVE_TIMEOUT_S)
            self._shard_log.look(self._source)

    async def _end(self, leaving: asyncio.Task[None]) -> None:
        try:
            await leaving
            await self._ran.wait()  # otherwise the task would be left when the event loop ends
        finally:
            await self._given.close()

    def _check_open(self) -> None:
        if self._forked or self._cleaning is not None:
            state = FORKED if self._forked else "is closed"
            raise ClosedError(f"{self.owner}: the consumer {state}")

    async def _begun(self) -> StreamConsumer:
        if self._source is None:
            await self._given.open()
            self._source = self._streams.open_source(
                self.group,
                delivery="at_most_once",
                drain_timeout_s=DRAIN_TIMEOUT_S,
                client_id="consumer",
            )
            await self._source.begin(self)
        return self._source

    async def _stored(self, source: StreamConsumer, name: TopicPartition, position: int) -> bool:
        """Store a checkpoint; return whether this member owns the shard."""
        fetched = source.positions().get(name)
        if fetched is None or position > fetched:
            return False  # the shard was lost, and perhaps gained again: its messages are delivered again
        try:
            await source.commit({name: position})
        except LeaseLostError:
            return False
        return True

    def _end_batch(self) -> None:
        self._batch = []
        self._done.set()

    async def _process(self, batch: list[Message]) -> None:
        context = copy_context()
        context.run(_processing.set, self)
        self._work = asyncio.create_task(self.process_batch(batch), context=context)
        try:
            await self._work
            await self.checkpoint(batch[-1].id)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                self._work.cancel()
                await asyncio.gather(self._work, return_exceptions=True)
                raise
            if self._batch:
                raise  # the program has cancelled its own task
            self._logger.warning(
                "the shard was lost while a batch was processed", shard_id=batch[0].shard_id
            )
        finally:
            self._work = None
            self._end_batch()

    # Calls of the source

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Wait until the batch of a shard that is given up is processed."""
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self._batch and _name(self._batch[0]) in partitions:
                    self._done.clear()
                    await self._done.wait()
        except TimeoutError:
            self._logger.warning(
                "another member takes the shard over while a batch of it is still being processed: that member "
                "processes the batch again. Make batches smaller",
                shard_id=self._batch[0].shard,
                waited_s=DRAIN_TIMEOUT_S,
            )

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Cancel the batch of a shard that was lost."""
        if self._batch and _name(self._batch[0]) in partitions:
            self._end_batch()
            if self._work is not None:
                self._work.cancel()


def _at_least_one(batch_size: int) -> int:
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} is not allowed: use 1 or more")
    return batch_size


def _name(record: StreamRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
