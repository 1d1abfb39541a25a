"""A consumer to derive from: batches of messages, and checkpoints that the program makes itself."""

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
"""How long it takes at most to give the shards away: the batch that is processed, and then the store of leases."""
FETCH_TIMEOUT_S: Final = 1.0
_processing: Final[ContextVar[Consumer | None]] = ContextVar("_processing", default=None)
"""The consumer whose batch the task processes, also in tasks that `process_batch` begins."""

_log: Final = logging.getLogger("headrace.kinesis")


class Consumer:
    """Reads the shards of a stream that are this member's of the group; `process_batch` is the program's.

        class Billing(Consumer):
            async def process_batch(self, batch: list[Message]) -> None: ...

        await Billing("orders", "billing", table="leases").run()

    A batch is of one shard. What `process_batch` returns from is checkpointed; what it raises ends `run`, and the batch
    comes again. A batch whose shard is lost meanwhile is cancelled. `headrace.App` retries, keeps dead letters, and
    handles several records at once.
    """

    _source: StreamConsumer | None = None
    _work: asyncio.Task[None] | None = None
    """The task that processes the batch."""
    _leaving: asyncio.Task[None] | None = None
    """The task that gives the shards to other members."""
    _cleaning: asyncio.Task[None] | None = None
    """The task that waits for that and for `run`, and then disconnects."""
    _batch: list[StreamRecord]
    """The batch that was fetched last and is not checkpointed to its end."""
    _ran: asyncio.Event
    """`run` is not fetching or processing."""
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
        """Prepare a consumer; nothing is connected before the first fetch.

        Args:
            stream: Name or ARN.
            group: Its members share the shards; every group gets every record.
            owner: What the table and `headrace kinesis describe` call this process; None is host and process id.
            table: Of DynamoDB, where leases are; it is created if there is none.
            initial_checkpoint: Where a new group begins: LATEST, TRIM_HORIZON, AFTER:<sequence number>, or a time.
            lock_duration: After so long without a sign of life shards are others', in milliseconds.
            wait_time_acquire: How often the consumer looks for shards to take, in milliseconds.
            batch_size: Messages of a batch at most.
            kinesis: A client of aiobotocore, or what `session.create_client("kinesis")` returns; None opens one.
            dynamodb: The same for DynamoDB.
            aws: Region, keys and endpoint of clients that are opened.
            leases: Another store of leases than a table, as `sqlite:///leases.db`.
            poll_ms: How often a shard without news is read, in milliseconds.
            logger: One of `logging`, or one with `bind`, as structlog's; None is `headrace.kinesis`.

        Raises:
            ConfigError: It makes no sense, and says why.
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
        """Become closed, in a forked child: the leases are the parent's."""
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
        """Handle messages of one shard, in order."""
        raise NotImplementedError("derive from Consumer, and say in process_batch what to do")

    # To be called

    async def run(self) -> None:
        """Fetch, process and checkpoint until `stop`, then give the shards to others."""
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
        """Have `run` end after the batch that it is at."""
        self._stopped = True

    async def fetch(self) -> list[Message]:
        """Return messages of one shard, waiting a second for the first; often none.

        What was fetched before is not fetched again here. Where neither it nor anything behind it is checkpointed, it
        comes again after a restart, or at another member.

        Raises:
            ClosedError: `clean` was called.
            KinesisError: The stream cannot be read.
        """
        self._check_open()
        source = await self._begun()
        self._end_batch()
        batch = await source.poll(FETCH_TIMEOUT_S, self._batch_size)
        if self._cleaning is not None:
            return []  # the shards were given to others meanwhile
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
        """Take a message that was fetched, and all before it in its shard, for processed, and wait until that is safe.

        Returns:
            True when that is stored; also for a message before an earlier checkpoint. False when the shard is not this
            member's any more: messages behind the last checkpoint come again, here or elsewhere.

        Raises:
            ConfigError: It is not the id of a message.
            ClosedError: The consumer belongs to the parent of this forked process.
        """
        name, offset = place_of(message_id, stream_name(self.stream))
        if self._forked:
            raise ClosedError(f"{self.owner}: the consumer {FORKED}")
        if self._source is None or not await self._stored(self._source, name, offset + 1):
            self._logger.warning("checkpoint refused: the shard is another's", id=message_id)
            return False
        self._logger.debug("checkpoint stored", id=message_id)
        if self._batch and _name(self._batch[-1]) == name and self._batch[-1].offset <= offset:
            self._end_batch()
        return True

    async def clean(self) -> None:
        """Give all shards to others, with what is checkpointed, and disconnect; may be called again.

        A batch that `run` is processing at that moment is finished before, for half a minute at most; not where
        `process_batch` itself calls this.
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
        # `run` ends after `process_batch`, which must not wait for that.
        await asyncio.shield(self._leaving if within else self._cleaning)

    # Within

    async def _leave(self) -> None:
        if self._source is not None:
            await self._source.leave(LEAVE_TIMEOUT_S)
            self._shard_log.look(self._source)

    async def _end(self, leaving: asyncio.Task[None]) -> None:
        try:
            await leaving
            await self._ran.wait()  # or else its task would be left when the event loop ends
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
        """Store how far a shard is processed; return whether the shard is this member's."""
        fetched = source.positions().get(name)
        if fetched is None or position > fetched:
            return (
                False  # it was lost, and perhaps has come back since: then its messages come again
            )
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
                raise  # the program's own
            self._logger.warning(
                "the shard was lost while a batch was processed", shard_id=batch[0].shard_id
            )
        finally:
            self._work = None
            self._end_batch()

    # What the source says

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Wait until the batch of a shard that goes is processed."""
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self._batch and _name(self._batch[0]) in partitions:
                    self._done.clear()
                    await self._done.wait()
        except TimeoutError:
            self._logger.warning(
                "the shard goes to another member, and a batch of it is still processed: that member processes the "
                "batch again. Make batches smaller",
                shard_id=self._batch[0].shard,
                waited_s=DRAIN_TIMEOUT_S,
            )

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Cancel the batch of a shard that is gone."""
        if self._batch and _name(self._batch[0]) in partitions:
            self._end_batch()
            if self._work is not None:
                self._work.cancel()


def _at_least_one(batch_size: int) -> int:
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size}: it is at least 1")
    return batch_size


def _name(record: StreamRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
