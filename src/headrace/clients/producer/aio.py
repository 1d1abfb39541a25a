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
from headrace.clients.drivers.local_target import port_of
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
    check_not_rejoined,
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

    The producer is idempotent by default: a batch that is sent again after a lost connection is written once. If a
    record cannot be delivered, the future that `send` returned raises the error; if the program does not ask the
    future, the next `flush` or `close` raises it. Batches are sent when they are full or after `linger.ms`, also while
    the program does something else. One producer may be used by many tasks of one event loop.
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
        """Prepare a producer. The first record opens the first connection.

        Args:
            target: HOST:PORT, several separated by commas, or a `Broker` of this process.
            acks: The replicas that must store a record: "all" in-sync ones (default), the leader (1), none (0), or so
                many in-sync replicas (2 or more, Headrace only).
            compression: none (default), gzip, snappy, lz4 or zstd.
            linger_ms: Milliseconds that a batch which is not full waits for more records. None is 5.
            batch_size: The size in bytes at which a batch is full. None is 65,536.
            idempotence: Whether brokers discard a batch that a retry sends again; needs acks=all. None is true, unless
                another setting excludes it.
            transactional_id: The producer's name for transactions, the same after a restart. A second producer with the
                same name fences the first one. With a name, records are sent inside transactions only.
            transaction_timeout_ms: Milliseconds that a transaction may be open. Then its coordinator aborts it, and the
                producer is fenced. None is 60,000.
            partitioner: key_hash, round_robin, sticky, random, a registered name, or a class of your own. None is the
                partitioner that the topic's configuration names (`headrace.partitioner`), or key_hash.
            serde: How values become bytes: a name (bytes, str, json, ...), a type that is written as JSON, or a serde.
                None is the serde that the topic's configuration names (`headrace.serde`), or bytes.
            key_serde: How keys become bytes, in the same ways.
            client_id: The name of the producer in the broker's log and in quotas.
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
        with contextlib.suppress(HeadraceError):  # the program's own exception is raised
            await self.close(0)

    @property
    def delivered(self) -> int:
        """The number of records that brokers have acknowledged."""
        return self._core.sender.delivered

    @property
    def failed(self) -> int:
        """The number of records that could not be delivered."""
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
        """Add a record to its partition's batch; wait only for the topic's metadata and for space in the buffer.

        Args:
            topic: The topic. If it does not exist, the broker may create it.
            value: The value. None is a record without a value, which deletes its key in a compacted topic.
            key: The key, by which the partitioner chooses the partition. None is a record without a key.
            headers: Pairs of name and value.
            timestamp_ms: The record's time, in milliseconds since 1970. None is now.
            partition: The partition. None lets the partitioner choose.
            ttl_ms: Milliseconds from its time until the record expires, on topics with `headrace.ttl.enable`.
            deliver_at_ms: The delivery time in milliseconds since 1970, on topics with `headrace.delay.enable`.
            delay_ms: Milliseconds from now until the delivery, in place of a delivery time.
            tags: Tags, by which consumers with `tags=` select records.
            on_delivery: Called with the future that this method returns, when the record is delivered or has failed.
                The call comes from within another call, from the client's thread, or with asyncio from the event loop.

        Returns:
            A future; its `result()` waits for the delivery.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: A time or a tag is out of range.
            SerializationError: The key or the value cannot be turned into bytes.
            ApiError: Writing is denied, there is no such partition, or the record exceeds `max.request.size`.
            TransportError: No broker answered, or the buffer stayed full, within `max.block.ms`.
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
        """Add many records to their partitions' batches. It costs much less than a `send` for each record.

        Args:
            topic: The topic. If it does not exist, the broker may create it.
            values: The values, one for each record. All of them are turned into bytes before the first record is added.
            keys: The keys, one for each value. None is records without keys.
            headers: Pairs of name and value; every record gets them.
            timestamp_ms: The time of all records, in milliseconds since 1970. None is now.
            partition: The partition of all records. None lets the partitioner choose for each record.
            ttl_ms: Milliseconds from the records' time until they expire; see `send`.
            deliver_at_ms: The delivery time in milliseconds since 1970; see `send`.
            delay_ms: Milliseconds from now until the delivery; see `send`.
            tags: The tags of all records.
            on_delivery: Called for each record; see `send`.

        Returns:
            One future for each record, in their order.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: The numbers of keys and values differ, or a time or a tag is out of range.
            SerializationError: A key or a value cannot be turned into bytes. No record was added.
            ApiError: See `send`. The records before the one that is refused are sent.
            TransportError: See `send`. Some records may be sent.
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
        """Send all records that were added so far, and wait until they are delivered.

        Args:
            timeout_s: Seconds to wait. None is `delivery.timeout.ms`.

        Raises:
            HeadraceError: A record failed since the last flush, and the program has not asked its future.
            TransportError: Records are not delivered in time. They are still in flight.
        """
        await self._driver.run(self._core.flush(self._limit_ms(timeout_s)), UNLIMITED_MS)

    # Transactions

    def transaction(self) -> Transaction:
        """Return a transaction: leaving `with producer.transaction():` commits it, an exception aborts it.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: The producer has no transactional id.
        """
        self._core.transaction()
        return Transaction(self)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and has not ended. A failed transaction ends when it is aborted.

        The transaction of a fenced producer never ends.
        """
        transactions = self._core.transactions
        return transactions is not None and transactions.under_way

    async def init_transactions(self, timeout_s: float | None = None) -> None:
        """Take over the transactional id now, and not with the first transaction.

        It fences every earlier producer with the id, and ends the transaction that such a producer left open. A program
        that continues from committed offsets calls this method first, and reads the offsets afterwards.

        Args:
            timeout_s: Seconds to try. None is `max.block.ms`.

        Raises:
            FatalTransactionError: The producer must not use the id.
            TransportError: No coordinator has answered in time.
        """
        await self._transact(self._core.transaction().initialize(), timeout_s)

    async def begin_transaction(self) -> None:
        """Begin a transaction. It contains all records that are sent until it ends; see also `transaction()`.

        Raises:
            TransactionStateError: A transaction is open.
            FatalTransactionError: The producer cannot be used any more.
            TransportError: No coordinator has answered in time.
        """
        await self._transact(self._core.transaction().begin())

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group: GroupMember | GroupConsumer
    ) -> None:
        """Commit offsets of a consumer group with the transaction.

        Args:
            offsets: One past the last finished record of each partition, for example `consumer.positions()`.
            group: The consumer that has read these records, or what its `group_metadata()` returns. With the consumer,
                the transaction also fails if the consumer leaves and rejoins its group while the offsets are sent.

        Raises:
            AbortableTransactionError: The consumer is no member of its group any more, or the offsets are refused.
            FatalTransactionError: The producer cannot be used any more.
        """
        member = member_of(group)
        check = partial(check_not_rejoined, group, member)
        flow = self._core.transaction().send_offsets(checked_offsets(offsets), member, check)
        await self._transact(flow)

    async def commit_transaction(self, timeout_s: float | None = None) -> None:
        """Deliver the records of the transaction, and commit it.

        Args:
            timeout_s: Seconds to try. None is `max.block.ms`.

        Raises:
            AbortableTransactionError: The transaction cannot be committed. Call `abort_transaction()`.
            CommitInDoubtError: No coordinator has confirmed the commit in time. Call this method again.
            FatalTransactionError: The producer cannot be used any more.
            TransportError: Records are not delivered in time. Call this method again, or `abort_transaction()`.
        """
        limit_ms = self._block_ms(timeout_s)
        await self._transact(self._core.transaction().commit(limit_ms), timeout_s)

    async def abort_transaction(self, timeout_s: float | None = None) -> None:
        """Abort the transaction: committed readers never see its records, and its offsets are not committed.

        Args:
            timeout_s: Seconds to try. None is `max.block.ms`.

        Raises:
            FatalTransactionError: The producer cannot be used any more.
            TransportError: No coordinator has answered in time. The coordinator aborts the transaction by itself after
                `transaction.timeout.ms`.
        """
        limit_ms = self._block_ms(timeout_s)
        await self._transact(self._core.transaction().abort(limit_ms), timeout_s)

    async def _transact(self, flow: Flow[None], timeout_s: float | None = None) -> None:
        self._driver.start_background()
        await self._driver.run(flow, self._block_ms(timeout_s))

    def _block_ms(self, timeout_s: float | None) -> int:
        return self.config.max_block_ms if timeout_s is None else round(timeout_s * 1000)

    # Partitions, and the end

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions."""
        return await self._driver.run(self._core.partitions_for(topic), self.config.max_block_ms)

    @unchecked
    async def wait_for(self, delivery: Delivery, timeout_s: float | None = None) -> None:
        """Wait until a record is delivered or has failed.

        Args:
            delivery: The future that `send` returned.
            timeout_s: Seconds to wait. None waits until the producer delivers the record or gives it up.

        Raises:
            TransportError: Neither happened in time.
        """
        await self._fates.wait_for(delivery, timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, then close the connections. Records that are not delivered in time are lost.

        Args:
            timeout_s: Seconds to wait for the delivery. None is `delivery.timeout.ms`.
        """
        if self._core.closed or self._driver.closed:
            return
        try:
            await self._driver.run(self._core.close(self._limit_ms(timeout_s)), UNLIMITED_MS)
        finally:
            await self._driver.close()

    async def _give_turn(self) -> None:  # asyncio only
        """Let the event loop run once if a batch was closed since its last turn.

        The event loop sends the batches. A program that only calls `send` would not let it run before the buffer is
        full.
        """
        self._buffered = self._core.sender.buffered
        await asyncio.sleep(0)

    def _limit_ms(self, timeout_s: float | None) -> int:
        return self.config.delivery_timeout_ms if timeout_s is None else round(timeout_s * 1000)
