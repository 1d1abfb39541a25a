"""A consumer to derive from: batches of messages, and checkpoints that the program makes itself."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headrace.errors import ClosedError, ConfigError, LeaseLostError
from headrace.forking import FORKED, disown_in_children
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.records import StreamRecord
from headrace.kinesis.stream import kinesis as streams_of
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.kinesis.client.settings import AwsClient
    from headrace.kinesis.group.consumer import StreamConsumer
    from headrace.kinesis.leases.store import LeaseStore

DRAIN_TIMEOUT_S: Final = 30.0
FETCH_TIMEOUT_S: Final = 1.0

_log: Final = logging.getLogger("headrace.kinesis")


class Message(NamedTuple):
    """A record of a stream."""

    id: str
    """What `checkpoint` takes: the shard, the sequence number, and the number of the user record of an aggregate."""
    payload: bytes
    stream: str
    shard_id: str
    partition_key: str
    ts_server: int
    """When Kinesis stored it, in milliseconds since 1970."""


class Consumer:
    """Reads the shards of a stream that are this member's of the group; `process_batch` is the program's.

        class Billing(Consumer):
            async def process_batch(self, batch: list[Message]) -> None: ...

        await Billing("orders", "billing", table="leases").run()

    A batch is of one shard. What `process_batch` returns from is checkpointed; what it raises ends `run`, and the batch
    comes again. A batch whose shard is lost meanwhile is cancelled. `headrace.App` retries, keeps dead letters, and
    handles several records at once.
    """

    def __init__(
        self,
        stream: str,
        group: str,
        *,
        owner: str | None = None,
        table: str = "headrace-leases",
        initial_checkpoint: str | datetime = "TRIM_HORIZON",
        lock_duration: int = 60_000,
        wait_time_acquire: int = 5_000,
        batch_size: int = 100,
        kinesis: AwsClient | None = None,
        dynamodb: AwsClient | None = None,
        aws: AwsSettings | None = None,
        leases: str | LeaseStore | None = None,
        poll_ms: int = 1_000,
    ) -> None:
        """Prepare a consumer; nothing is connected before the first fetch.

        Args:
            stream: Name or ARN.
            group: Its members share the shards; every group gets every record.
            owner: What messages call this one; two may have one name, as each has an identity besides.
            table: Of DynamoDB, where leases are.
            initial_checkpoint: Where the group begins: TRIM_HORIZON, LATEST, AFTER:<sequence number>, or a time.
            lock_duration: After so long without a sign of life shards are others', in milliseconds.
            wait_time_acquire: How often it is looked for shards to take, in milliseconds.
            batch_size: Messages of a batch at most.
            kinesis: A client of aiobotocore; None opens one.
            dynamodb: Likewise.
            aws: Region, keys and endpoint of clients that are opened.
            leases: Another store of leases than a table, as `sqlite:///leases.db`.
            poll_ms: How often a shard without news is read, in milliseconds.

        Raises:
            ConfigError: It makes no sense, and says why.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: it is at least 1")
        self.stream = stream
        self.group = group
        self.owner = owner or "consumer"
        self._batch_size = batch_size
        self._streams = streams_of(
            stream,
            aws=_settings(aws, {"kinesis": kinesis, "dynamodb": dynamodb}),
            start=initial_checkpoint,
            leases=leases or f"dynamodb://{table}",
            lease_duration_ms=lock_duration,
            scan_ms=wait_time_acquire,
            poll_ms=poll_ms,
        )
        self._source: StreamConsumer | None = None
        self._batch: list[StreamRecord] = []
        """What was fetched last and is not checkpointed to its end."""
        self._done = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._stopped = self._cleaned = self._forked = False
        disown_in_children(self)

    def disown(self) -> None:
        """Become closed, in a forked child: the leases are the parent's."""
        self._stopped = self._cleaned = self._forked = True

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
        try:
            while not self._stopped:
                batch = await self.fetch()
                if batch:
                    await self._process(batch)
        finally:
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
        source = await self._begun()
        self._end_batch()
        self._batch = await source.poll(FETCH_TIMEOUT_S, self._batch_size)
        return [_message(record) for record in self._batch]

    async def checkpoint(self, message_id: str) -> None:
        """Take a message of the last batch and all before it in its shard for processed, and wait until that is safe.

        Raises:
            LeaseLostError: The shard is another's: the messages come again there.
            ConfigError: It is no message of the last batch.
        """
        source = await self._begun()
        ids = [_id(record) for record in self._batch]
        if message_id not in ids:
            raise ConfigError(f"{message_id!r} is the id of no message of the last batch")
        record = self._batch[ids.index(message_id)]
        await source.commit({_name(record): record.offset + 1})
        if message_id == ids[-1]:
            self._end_batch()

    async def clean(self) -> None:
        """Give all shards to others, with what is checkpointed, and disconnect; may be called again."""
        if self._cleaned:
            return
        self._cleaned = True
        self._end_batch()
        if self._source is not None:
            await self._source.leave(DRAIN_TIMEOUT_S)

    # Within

    async def _begun(self) -> StreamConsumer:
        if self._cleaned:
            state = FORKED if self._forked else "is closed"
            raise ClosedError(f"{self.owner}: the consumer {state}")
        if self._source is None:
            self._source = self._streams.open_source(
                self.group, delivery="at_most_once", drain_timeout_s=DRAIN_TIMEOUT_S
            )
            await self._source.begin(self)
        return self._source

    def _end_batch(self) -> None:
        self._batch = []
        self._done.set()

    async def _process(self, batch: list[Message]) -> None:
        self._work = asyncio.create_task(self.process_batch(batch))
        try:
            await self._work
            await self.checkpoint(batch[-1].id)
        except (LeaseLostError, asyncio.CancelledError) as error:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                self._work.cancel()
                await asyncio.gather(self._work, return_exceptions=True)
                raise
            if isinstance(error, asyncio.CancelledError) and self._batch:
                raise  # the program's own
            _log.warning("%s: %s was lost while it was processed", self.owner, batch[0].shard_id)
        finally:
            self._work = None

    # What the source says

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Wait until the batch of a shard that goes is processed."""
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self._batch and _name(self._batch[0]) in partitions:
                    self._done.clear()
                    await self._done.wait()
        except TimeoutError:
            _log.warning(
                "%s: %s goes to another member, and a batch of it is still processed after %g s: that member processes "
                "the batch again. Make batches smaller",
                self.owner,
                self._batch[0].shard,
                DRAIN_TIMEOUT_S,
            )

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Cancel the batch of a shard that is gone."""
        if self._batch and _name(self._batch[0]) in partitions:
            self._end_batch()
            if self._work is not None:
                self._work.cancel()


def _settings(aws: AwsSettings | None, clients: dict[str, AwsClient | None]) -> AwsSettings:
    given = {name: client for name, client in clients.items() if client is not None}
    if aws is not None and given:
        raise ConfigError("aws= opens clients: give either it, or kinesis= and dynamodb=")
    return aws or AwsSettings(clients=given)


def _name(record: StreamRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _id(record: StreamRecord) -> str:
    return f"{record.shard}:{record.place}"


def _message(record: StreamRecord) -> Message:
    return Message(
        _id(record),
        record.value,
        record.topic,
        record.shard,
        record.key.decode(),
        record.timestamp_ms,
    )
