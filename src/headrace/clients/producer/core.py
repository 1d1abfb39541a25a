"""The decisions of a producer: partitions, batches, and when the program has to wait. The public clients wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NoReturn, TypeVar

from headrace.clients.arguments import shown
from headrace.clients.config import ProducerConfig
from headrace.clients.engine import Engine
from headrace.clients.flows import metadata
from headrace.clients.flows.effects import Flow, Wait
from headrace.clients.partitioners import (
    KeyHash,
    Partitioner,
    Sticky,
)
from headrace.clients.producer.batches import PartitionQueue, ProducerBatch
from headrace.clients.producer.delivery import Delivery, Fate, check_callback
from headrace.clients.producer.known_topics import KnownTopics
from headrace.clients.producer.many import Many, Rows
from headrace.clients.producer.record_checks import check_partition_number, check_record, serialized
from headrace.clients.producer.sender import Sender
from headrace.clients.producer.topic import ProducerTopic
from headrace.clients.producer.transaction_manager import TransactionManager
from headrace.errors import (
    ApiError,
    ClosedError,
    ConfigError,
    ErrorCode,
    HeadraceError,
    TransportError,
)
from headrace.records.builder import BatchBuilder, Headers
from headrace.records.compression import Compression
from headrace.registers import Named
from headrace.serdes.serde import AnySerde
from headrace.types import TopicPartition

D = TypeVar("D", bound=Delivery)

LAST_ABORT_MS: Final = 5_000
"""The least number of milliseconds for which `close` tries to end an open transaction."""


class ProducerCore(Generic[D]):
    """The state of one producer."""

    def __init__(
        self,
        engine: Engine,
        config: ProducerConfig,
        *,
        delivery: Callable[[Fate, int, int], D],
        choose: Callable[[int], int],
        partitioner: str | type[Any] | Partitioner | None = None,
        serde: AnySerde | None = None,
        key_serde: AnySerde | None = None,
        share: Callable[[str, Named, Partitioner], Partitioner] | None = None,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare a producer.

        Args:
            engine: The client's engine.
            config: The producer's configuration.
            delivery: Makes the future of a record from its batch's fate, its index in the batch, and its timestamp.
            choose: Returns a random number below its argument.
            partitioner: The partitioner for all topics. None is the one that each topic names, or `key_hash`.
            serde: The serde for values. None is the one that each topic names, or bytes.
            key_serde: The serde for keys. None is the one that each topic names, or bytes.
            share: Called with a topic, the name of its partitioner, and a new partitioner; returns the partitioner that
                all producers of this process use for the topic. None shares none.
            warn: Logs a warning.

        Raises:
            ConfigError: There is no such partitioner or serde.
        """
        self._known = KnownTopics(
            engine,
            choose=choose,
            partitioner=partitioner,
            serde=serde,
            key_serde=key_serde,
            share=share,
            warn=warn,
        )
        self.sender = Sender(
            engine,
            config,
            on_batch_closed=self._known.batch_closed,
            on_topics=self._known.update_partitions,
        )
        self._engine = engine
        self._config = config
        self._delivery = delivery
        self._compression = Compression[config.compression_type.upper()]
        self._topics = self._known.by_name
        """The topics that `send` may write to, by name; empty while the producer is closed or outside a transaction."""
        self.transactions: TransactionManager | None = None
        if config.transactional_id is not None:
            name = config.transactional_id
            self.transactions = TransactionManager(
                engine, config, name, self.sender, self._may_send
            )
            self._topics = {}
        self.closed = False

    # Sending

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int | None,
        on_delivery: Callable[[D], object] | None,
    ) -> D | None:
        """Add a record to its partition's batch. Return None, and do nothing, if `prepare` has to run first.

        Raises:
            ClosedError: The producer is closed.
            SerializationError: Key or value cannot be turned into bytes.
            ApiError: The topic has no such partition, or the record exceeds `max.request.size`.
        """
        try:
            known = self._topics.get(topic)
        except TypeError:  # it cannot be a key
            raise ConfigError(f"a topic's name is text, not {shown(topic)}") from None
        if (
            known is None
            or self.sender.buffered > self._config.buffer_memory
            or (partition is not None and partition not in range(known.count))
        ):
            self._check_sending()
            if known is None:
                check_record(headers, timestamp_ms, on_delivery)
            return None
        if on_delivery is not None:
            check_callback(on_delivery)
        key_bytes = None if key is None else serialized(known.serialize_key, key, topic, "key")
        value_bytes = (
            value
            if value is None or (type(value) is bytes and known.bytes_as_they_are)
            else serialized(known.serialize_value, value, topic, "value")
        )
        if timestamp_ms is None:
            timestamp_ms = self._engine.now_ms
        try:
            batch = self._append(
                known,
                key_bytes,
                value_bytes,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            )
        except (AttributeError, TypeError, ValueError):
            check_record(headers, timestamp_ms)
            raise
        delivery = self._delivery(batch.fate, len(batch.deliveries), timestamp_ms)
        batch.deliveries.append(delivery)
        if on_delivery is not None:
            delivery.add_done_callback(on_delivery)
        return delivery

    def send_many(self, many: Many[D]) -> bool:
        """Add records to their partitions' batches. Return False, with some records added, if `prepare` has to run.

        Raises:
            ClosedError: The producer is closed.
            SerializationError: A key or value cannot be turned into bytes; no record was added.
            ApiError: The topic has no such partition, or a record exceeds `max.request.size`; those before it were
                added.
        """
        if not isinstance(many.topic, str):
            raise ConfigError(f"a topic's name is text, not {shown(many.topic)}")
        topic = self._topics.get(many.topic)
        if topic is None or (
            many.partition is not None and many.partition not in range(topic.count)
        ):
            self._check_sending()
            check_record(many.headers, many.timestamp_ms)
            return False
        many.serialize(topic)
        timestamp_ms = self._engine.now_ms if many.timestamp_ms is None else many.timestamp_ms
        try:
            return self._append_many(topic, many, timestamp_ms)
        except (AttributeError, TypeError, ValueError):
            check_record(many.headers, timestamp_ms)
            raise

    def _append_many(self, topic: ProducerTopic, many: Many[D], timestamp_ms: int) -> bool:
        values, keys, deliveries = many.values, many.keys, many.deliveries
        placed = many.partition is not None or type(topic.partitioner) in {KeyHash, Sticky}
        # Whether a batch that took one record may take all those after it that fit.
        stays = placed and keys is None and not many.headers
        while (position := len(deliveries)) < len(values):
            if self.sender.buffered > self._config.buffer_memory:
                return False
            batch = self._append(
                topic,
                None if keys is None else keys[position],
                values[position],
                headers=many.headers,
                timestamp_ms=timestamp_ms,
                partition=many.partition,
            )
            more = batch.extend(values, position + 1, timestamp_ms) if stays else 0
            first = len(batch.deliveries)
            new = [
                self._delivery(batch.fate, index, timestamp_ms)
                for index in range(first, first + 1 + more)
            ]
            batch.deliveries += new
            deliveries += new
            if many.on_delivery is not None:
                for delivery in new:
                    delivery.add_done_callback(many.on_delivery)
        return True

    def send_rows(self, rows: Rows) -> bool:
        """Add records without futures, as `send_many` does with futures. `flush` raises a failure.

        Raises:
            ClosedError: The producer is closed.
            ApiError: The topic has no such partition, or a record exceeds `max.request.size`; those before it were
                added.
        """
        topic = self._topics.get(rows.topic)
        if topic is None or not rows.partitions <= set(range(topic.count)):
            self._check_sending()
            return False
        kind = type(topic.partitioner)
        hashed, sticky = topic.count if kind is KeyHash else 0, -1
        while (row := rows.fill(topic.queues, topic.count, hashed, sticky)) is not None:
            key, value, headers, timestamp_ms, partition = row
            batch = self._append(
                topic,
                key,
                value,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            )
            if partition is None and kind in {KeyHash, Sticky}:
                sticky = batch.topic_partition.partition
            if self.sender.buffered > self._config.buffer_memory:
                return False
        return True

    def _append(
        self,
        topic: ProducerTopic,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Headers,
        timestamp_ms: int,
        partition: int | None,
    ) -> ProducerBatch:
        number = partition
        if number is None:
            number = topic.partitioner.partition(key, value, topic.available, topic.count)
        queue = topic.queues.get(number) or self._add_queue(topic, number)
        batch = queue.open
        if batch is not None:
            if batch.append(key, value, headers, timestamp_ms):
                return batch
            self.sender.close_open(queue)
            self.sender.work()
            if partition is None and key is None and topic.batch_closed is not None:
                # A sticky partitioner chooses another partition for the next batch.
                number = topic.partitioner.partition(key, value, topic.available, topic.count)
                return self._append(
                    topic, key, value, headers=headers, timestamp_ms=timestamp_ms, partition=number
                )
        batch = ProducerBatch(queue.topic_partition, self._new_builder(), self._engine.now_ms)
        batch.append(key, value, headers, timestamp_ms)
        if batch.size > self._config.max_request_size:
            limit = self._config.max_request_size
            text = f"a record of {batch.size} bytes exceeds max.request.size={limit}"
            raise ApiError.for_code(ErrorCode.MESSAGE_TOO_LARGE, text)
        self.sender.open_batch(queue, batch)
        return batch

    def _new_builder(self) -> BatchBuilder:
        transactional = self.transactions is not None
        size = self._config.batch_size
        return BatchBuilder(self._compression, max_bytes=size, transactional=transactional)

    def _add_queue(self, topic: ProducerTopic, number: int) -> PartitionQueue:
        topic.check_partition(number)
        topic_partition = TopicPartition(topic.name, number)
        queues = self.sender.queues
        if topic_partition not in queues:  # one that was created again has them already
            queues[topic_partition] = PartitionQueue(topic_partition)
        topic.queues[number] = queue = queues[topic_partition]
        return queue

    # Waiting, as flows

    def prepare(self, topic: str, partition: int | None) -> Flow[None]:
        """Look up a topic, or a partition of it, and wait until the buffer has space.

        Raises:
            ApiError: There is no such topic, or it may not be written.
            TransportError: No broker answered, or no space became free, in time.
        """
        self._check_sending()
        if not isinstance(topic, str):
            raise ConfigError(f"a topic's name is text, not {shown(topic)}")
        check_partition_number(partition)
        if topic not in self._known.by_name:
            yield from self._known.learn(topic)
        known = self._known.by_name[topic]
        if partition is not None and partition not in range(known.count):
            # The partition may have been added since.
            yield from metadata.refresh(self._engine.state, [topic])
            self._known.update_partitions([topic])
            if topic not in self._known.by_name:
                yield from self._known.learn(topic)
            self._known.by_name[topic].check_partition(partition)
        began_ms = self._engine.now_ms
        until_ms = began_ms + self._config.max_block_ms
        while self.sender.buffered > self._config.buffer_memory:
            if self._engine.now_ms >= until_ms:
                self._timed_out(
                    f"{self.sender.buffered} bytes wait for delivery, none left within max.block.ms="
                    f"{self._config.max_block_ms}",
                    began_ms,
                )
            yield Wait(until_ms)
            self._check_sending()

    def delivered(self, delivery: Delivery, timeout_ms: int) -> Flow[None]:
        """Wait until a record is delivered or has failed.

        Raises:
            TransportError: Neither happened in time.
        """
        began_ms = self._engine.now_ms
        until_ms = began_ms + timeout_ms
        while not delivery.done():
            if self._engine.now_ms >= until_ms:
                where = delivery.topic_partition
                self._timed_out(
                    f"{where}: the record is not delivered after {timeout_ms} ms", began_ms
                )
            yield Wait(until_ms)

    def flush(self, timeout_ms: int) -> Flow[None]:
        """Send all records that were added so far, and wait until they are delivered.

        Raises:
            HeadraceError: A record failed since the last flush, and the program has not asked its future.
            TransportError: Records are still in flight when the time is over.
        """
        began_ms = self._engine.now_ms
        until_ms = began_ms + timeout_ms
        for queue in list(self.sender.active):
            self.sender.close_open(queue)
        given = [
            batch.fate for queue in self.sender.active for batch in (*queue.in_flight, *queue.ready)
        ]
        self.sender.work()
        while given := [fate for fate in given if not fate.done()]:
            if self._engine.now_ms >= until_ms:
                count = len({fate.topic_partition for fate in given})
                text = f"records for {count} partitions are not delivered after {timeout_ms} ms"
                self._timed_out(text, began_ms)
            yield Wait(until_ms)
        self._raise_failure()

    def _timed_out(self, text: str, began_ms: int) -> NoReturn:
        raise TransportError(self._engine.trouble.explain(text, began_ms))

    def close(self, timeout_ms: int) -> Flow[None]:
        """Accept no more records, flush, and fail the records that are not delivered in time."""
        if self.closed:
            return
        self.closed = True
        self._known.by_name.clear()  # so that `send` finds the producer closed
        try:
            if self.transactions is None:
                yield from self.flush(timeout_ms)
            else:
                yield from self._end_transaction(self.transactions, max(timeout_ms, LAST_ABORT_MS))
        finally:
            self.sender.give_up(
                ClosedError("the producer was closed before the record was delivered")
            )

    def _end_transaction(self, transactions: TransactionManager, timeout_ms: int) -> Flow[None]:
        flow = transactions.close(timeout_ms)
        task = self._engine.spawn(
            flow, timeout_ms=timeout_ms, on_done=lambda _: self._engine.notify()
        )
        while not task.done:
            yield Wait()
        task.result()

    def partitions_for(self, topic: str) -> Flow[list[int]]:
        """Return a topic's partitions."""
        self._check_open()
        yield from metadata.ensure(self._engine.state, [topic], auto_create=True)
        return [partition for _, partition in self._engine.state.metadata.partitions(topic)]

    def forget(self, topic: str) -> None:
        """Forget a topic, so that the next record for it looks up its serdes and its partitioner again."""
        self._known.forget(topic)

    # Whether records may be sent

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the producer is closed")

    def _check_sending(self) -> None:
        self._check_open()
        if self.transactions is not None:
            self.transactions.check_sending()

    def _may_send(self, may: bool) -> None:  # noqa: FBT001 - it is all that this says
        self._topics = self._known.by_name if may else {}

    def transaction(self) -> TransactionManager:
        """Return what the producer does with transactions.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: It has no transactional id.
        """
        self._check_open()
        if self.transactions is None:
            raise ConfigError("transactions need a name: Producer(..., transactional_id=NAME)")
        return self.transactions

    def _raise_failure(self) -> None:
        failures = [each for each in self.sender.failures if not each.observed]
        self.sender.failures.clear()
        for each in failures:
            error: HeadraceError | None = each.exception()
            if error is not None:
                raise error
