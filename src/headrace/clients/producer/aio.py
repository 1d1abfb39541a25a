"""The asyncio producer: what `headrace.aio.Producer` is."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.clients.arguments import checks_arguments, unchecked
from headrace.clients.config import ProducerConfig
from headrace.clients.drivers import Target, closed_on_error, open_aio_driver
from headrace.clients.drivers.local import port_of
from headrace.clients.engine import UNLIMITED_MS
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.transactions import GroupMember
from headrace.clients.partitioners import Partitioner
from headrace.clients.producer.aio_delivery import DeliveryFuture, Fates
from headrace.clients.producer.aio_transaction import Transaction
from headrace.clients.producer.core import ProducerCore
from headrace.clients.producer.delivery import Delivery
from headrace.clients.producer.lifetime import AsyncProducerLifetime
from headrace.clients.producer.many import Many
from headrace.clients.producer.settings import producer_config, warn
from headrace.clients.producer.transaction_offsets import (
    GroupConsumer,
    Offsets,
    check_place,
    checked_offsets,
    member_of,
)
from headrace.errors import HeadraceError
from headrace.records.builder import Headers
from headrace.records.directives import directives
from headrace.serdes.serde import AnySerde

if TYPE_CHECKING:
    from headrace.clients.properties import ProducerProperties


@checks_arguments
class Producer(AsyncProducerLifetime):
    """Sends records; an asynchronous context manager that flushes and closes.

    Idempotent by default: a batch that is sent again after a broken connection is written once. A record whose
    delivery fails is told by what `send` returned; if nobody asks that, the next `flush` or `close` raises the error.
    Batches leave when they are full or have lingered, also while the program does something else. One producer
    may be used by many tasks of one event loop.
    """

    _core: ProducerCore[DeliveryFuture]
    _buffered = 0  # asyncio only
    """Bytes in closed batches when the event loop last had its turn."""

    def __init__(
        self,
        target: Target = "127.0.0.1:9092",
        *,
        acks: int | str | None = None,
        compression: str | None = None,
        linger_ms: int | None = None,
        batch_size: int | None = None,
        idempotence: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int | None = None,
        partitioner: str | type[Any] | Partitioner | None = None,
        serde: AnySerde | None = None,
        key_serde: AnySerde | None = None,
        client_id: str = "headrace",
        **properties: Unpack[ProducerProperties],
    ) -> None:
        """Prepare a producer; nothing is connected before the first record.

        Args:
            target: HOST:PORT, several separated by commas, or a `Broker` of this process.
            acks: "all" (default), 1 or 0.
            compression: none (default), gzip, snappy, lz4 or zstd.
            linger_ms: How long a batch that is not full waits for more records.
            batch_size: Bytes of records that make a batch full.
            idempotence: Whether brokers recognise repeated batches; needs acks=all.
            transactional_id: The producer's name for transactions, the same after a restart; two at once are one too
                many, and the first is shut out. With it records are sent inside of transactions only.
            transaction_timeout_ms: How long a transaction may be open (a minute); then its coordinator aborts it, and
                the producer is of no more use.
            partitioner: key_hash, round_robin, sticky, random, a name that was registered, or a class of one's own.
                None is what the topic's metadata says (`headrace.partitioner`), else key_hash.
            serde: How values become bytes: a name (bytes, str, json, ...), a type that is written as JSON, or a serde.
                None is what the topic's metadata says (`headrace.serde`), else bytes.
            key_serde: How keys become bytes, in the same ways.
            client_id: The name by which brokers know the producer.
            properties: More properties, `delivery_timeout_ms=5000` or `**{"delivery.timeout.ms": 5000}`.

        Raises:
            ConfigError: A property is unknown, malformed or contradicts another.
        """
        self.config: ProducerConfig = producer_config(
            target,
            properties,
            acks=acks,
            compression_type=compression,
            linger_ms=linger_ms,
            batch_size=batch_size,
            enable_idempotence=idempotence,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            client_id=client_id,
        )
        self._driver = open_aio_driver(target, self.config)
        self._fates = Fates(self._driver)
        with closed_on_error(self._driver):
            self._core = self._fates.core = self._new_core(target, partitioner, serde, key_serde)
        self._close_at_exit()

    def _new_core(
        self,
        target: Target,
        partitioner: str | type[Any] | Partitioner | None,
        serde: AnySerde | None,
        key_serde: AnySerde | None,
    ) -> ProducerCore[DeliveryFuture]:
        return ProducerCore(
            self._driver.engine,
            self.config,
            delivery=partial(DeliveryFuture, self._fates),
            choose=random.randrange,
            partitioner=partitioner,
            serde=serde,
            key_serde=key_serde,
            share=None if isinstance(target, str) else port_of(target).share_partitioner,
            warn=warn,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
            return
        with contextlib.suppress(
            HeadraceError
        ):  # the program fails already, with an error of its own
            await self.close(0)

    @property
    def delivered(self) -> int:
        """Records acknowledged so far."""
        return self._core.sender.delivered

    @property
    def failed(self) -> int:
        """Records given up so far."""
        return self._core.sender.failed

    @unchecked
    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
        tags: Collection[str] = (),
        on_delivery: Callable[[DeliveryFuture], object] | None = None,
    ) -> DeliveryFuture:
        """Add a record to its partition's batch; waits only for the topic's metadata, and room in the buffer.

        Args:
            topic: Where to; created by the broker if it does that.
            value: The content; None is a record without a value, which deletes its key in a compacted topic.
            key: Decides the partition, as in every client of Kafka's Java family.
            headers: Name and value pairs.
            timestamp_ms: The record's time, milliseconds since 1970; None is now.
            partition: The partition, instead of the partitioner's.
            ttl_ms: How long after its time the record expires, on topics with `headrace.ttl.enable`; others keep it.
            deliver_at_ms: When it comes, milliseconds since 1970, on topics with `headrace.delay.enable`; else at once.
            delay_ms: How long after it is sent it comes, instead of a time.
            tags: What consumers with `tags=` choose by.
            on_delivery: Called with what this method returns when the record's fate is known, in the order of
                fates: from within another call, from the client's own thread, or with asyncio from the event loop.

        Returns:
            The record's fate; `.result()` waits for it.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: A time or a tag is out of range.
            SerializationError: Key or value cannot be turned into bytes.
            ApiError: The topic may not be written or has no such partition, or the record exceeds `max.request.size`.
            TransportError: No broker answered, or no room appeared in the buffer, within `max.block.ms`.
        """
        if tags or (ttl_ms, deliver_at_ms, delay_ms) != (None, None, None):
            headers = directives(headers, tags, ttl_ms, deliver_at_ms, delay_ms)
        if self._core.sender.buffered != self._buffered:  # asyncio only
            await self._give_turn()
        while True:
            with self._driver.enter():
                delivery = self._core.send(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    timestamp_ms=timestamp_ms,
                    partition=partition,
                    on_delivery=on_delivery,
                )
            if delivery is not None:
                return delivery
            self._driver.start_background()
            await self._driver.run(self._core.prepare(topic, partition), self.config.max_block_ms)

    @unchecked
    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
        tags: Collection[str] = (),
        on_delivery: Callable[[DeliveryFuture], object] | None = None,
    ) -> list[DeliveryFuture]:
        """Add many records to their partitions' batches: as `send` for each, at a fraction of the cost.

        Args:
            topic: Where to.
            values: The contents, one for each record; all become bytes before the first is added.
            keys: As many keys; None is records without a key.
            headers: Name and value pairs that each record gets.
            timestamp_ms: The time of all, milliseconds since 1970; None is now.
            partition: The partition of all, instead of the partitioner's.
            ttl_ms: How long after their time the records expire, as for `send`.
            deliver_at_ms: When they come to their partitions, as for `send`.
            delay_ms: How long after they are sent.
            tags: The tags of all.
            on_delivery: Called for each record, as `send` does.

        Returns:
            The records' fates, in their order.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: There are not as many keys as values, or a time or a tag is out of range.
            SerializationError: A key or value cannot be turned into bytes; none was added.
            ApiError: As for `send`; the records before the one that is refused are on their way.
            TransportError: As for `send`; likewise.
        """
        if tags or (ttl_ms, deliver_at_ms, delay_ms) != (None, None, None):
            headers = directives(headers, tags, ttl_ms, deliver_at_ms, delay_ms)
        many: Many[DeliveryFuture] = Many(
            topic,
            values,
            keys,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=partition,
            on_delivery=on_delivery,
        )
        if self._core.sender.buffered != self._buffered:  # asyncio only
            await self._give_turn()
        while True:
            with self._driver.enter():
                whole = self._core.send_many(many)
            if whole:
                return many.deliveries
            self._driver.start_background()
            await self._driver.run(self._core.prepare(topic, partition), self.config.max_block_ms)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything that was given so far, and wait until it is delivered.

        Args:
            timeout_s: Seconds to wait; None is `delivery.timeout.ms`.

        Raises:
            HeadraceError: The first failed delivery since the last flush that nobody has looked at.
            TransportError: Records are still on their way when the time is over.
        """
        await self._driver.run(self._core.flush(self._limit_ms(timeout_s)), UNLIMITED_MS)

    # Transactions

    def transaction(self) -> Transaction:
        """Return one transaction: `with producer.transaction():` commits on leaving, or aborts on an exception.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: It has no transactional id.
        """
        self._core.transaction()
        return Transaction(self)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended; one that failed has to be aborted yet.

        That of a producer which was shut out meanwhile never ends.
        """
        transactions = self._core.transactions
        return transactions is not None and transactions.under_way

    async def init_transactions(self, timeout_s: float | None = None) -> None:
        """Take over the transactional id now instead of at the first transaction.

        From then on nobody who had it before can write or commit, and what they left open is ended. So whoever goes
        on from committed offsets calls this first, and reads the offsets afterwards.

        Args:
            timeout_s: Seconds to try; None is `max.block.ms`.

        Raises:
            FatalTransactionError: The producer must not use it.
            TransportError: No coordinator has answered in time.
        """
        await self._transact(self._core.transaction().initialize(), timeout_s)

    async def begin_transaction(self) -> None:
        """Begin a transaction: what is sent from now on is in it. `transaction()` is the same with an end to it.

        Raises:
            TransactionStateError: There is one already.
            FatalTransactionError: The producer is of no more use.
            TransportError: No coordinator has answered in time.
        """
        await self._transact(self._core.transaction().begin())

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group: GroupMember | GroupConsumer
    ) -> None:
        """Have offsets of a group committed with the transaction.

        Args:
            offsets: One past the last finished record of each partition: `consumer.positions()`, say.
            group: The consumer that has read up to there, or what its `group_metadata()` returns. With the consumer, a
                transaction also fails if the consumer loses its place and joins again while the offsets are sent.

        Raises:
            AbortableTransactionError: The group went on without the consumer, or they cannot be committed.
            FatalTransactionError: The producer is of no more use.
        """
        member = member_of(group)
        check = partial(check_place, group, member)
        flow = self._core.transaction().send_offsets(checked_offsets(offsets), member, check)
        await self._transact(flow)

    async def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Deliver what was sent and commit the transaction.

        Args:
            timeout_s: Seconds to try; None is `max.block.ms`.

        Raises:
            AbortableTransactionError: It cannot be committed: `abort_transaction()` comes next.
            CommitInDoubtError: No coordinator has confirmed it in time; call this again.
            FatalTransactionError: The producer is of no more use.
            TransportError: Records are not delivered in time; call this again, or `abort_transaction()`.
        """
        limit_ms = self._block_ms(timeout_s)
        await self._transact(self._core.transaction().commit(limit_ms), timeout_s)

    async def abort_transaction(self, timeout_s: float | None = None) -> None:
        """Have everything in the transaction taken for never written.

        Args:
            timeout_s: Seconds to try; None is `max.block.ms`.

        Raises:
            FatalTransactionError: The producer is of no more use.
            TransportError: No coordinator has answered in time; it aborts by itself when `transaction.timeout.ms` is
                over.
        """
        limit_ms = self._block_ms(timeout_s)
        await self._transact(self._core.transaction().abort(limit_ms), timeout_s)

    async def _transact(self, flow: Flow[None], timeout_s: float | None = None) -> None:
        self._driver.start_background()
        await self._driver.run(flow, self._block_ms(timeout_s))

    def _block_ms(self, timeout_s: float | None) -> int:
        return self.config.max_block_ms if timeout_s is None else round(timeout_s * 1000)

    # What else there is

    async def partitions_for(self, topic: str) -> list[int]:
        """Return a topic's partitions."""
        return await self._driver.run(self._core.partitions_for(topic), self.config.max_block_ms)

    @unchecked
    async def wait_for(self, delivery: Delivery, timeout_s: float | None = None) -> None:
        """Wait until a record's fate is known.

        Args:
            delivery: What `send` returned.
            timeout_s: Seconds to wait; None is until the producer delivers it or gives it up.

        Raises:
            TransportError: It is not known in time.
        """
        await self._fates.wait_for(delivery, timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and close the connections; what is not delivered in time is given up.

        Args:
            timeout_s: As for `flush`.
        """
        if self._core.closed or self._driver.closed:
            return
        try:
            await self._driver.run(self._core.close(self._limit_ms(timeout_s)), UNLIMITED_MS)
        finally:
            await self._driver.close()

    async def _give_turn(self) -> None:  # asyncio only
        """Let the loop have its turn, when a batch was closed since it had it last.

        A batch's bytes leave only then, and a program that does nothing but send would never give it one before the
        buffer is full.
        """
        self._buffered = self._core.sender.buffered
        await asyncio.sleep(0)

    def _limit_ms(self, timeout_s: float | None) -> int:
        return self.config.delivery_timeout_ms if timeout_s is None else round(timeout_s * 1000)
