"""A blocking producer: records in, batches out, in the order they were sent.

Nothing runs in the background. Bytes move while `send`, `poll`, `flush` or `close` runs: `send` only does so when a
batch is full or its linger time is over, so a program that pauses calls `poll` or `flush`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from types import TracebackType
from typing import Any, Self

from headrace.clients.accumulator import (
    Batch,
    Delivery,
    DeliveryCallback,
    Headers,
    PartitionQueue,
)
from headrace.clients.blocking import client_state
from headrace.clients.config import ProducerConfig, parse_config
from headrace.clients.drivers.polling import PollingDriver
from headrace.clients.flows import metadata
from headrace.clients.partitioner import StickyPartitioner, partition_for_key
from headrace.clients.sender import Sender
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression
from headrace.types import TopicPartition

__all__ = ["BlockingProducer", "Delivery", "DeliveryCallback"]


class BlockingProducer:
    """Sends records; a context manager that flushes and closes.

    Idempotent by default: a batch that is sent again after a broken connection is written once. A record whose
    delivery fails is reported to its `on_delivery`; where there is none, the next `flush` or `close` raises the error.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        acks: int | str | None = None,
        compression: str | None = None,
        linger_ms: int | None = None,
        batch_size: int | None = None,
        idempotence: bool | None = None,
        client_id: str = "headrace",
        **properties: Any,
    ) -> None:
        """Prepare a producer; nothing is connected before the first record.

        Args:
            bootstrap: Comma-separated HOST:PORT.
            acks: "all" (default), 1 or 0.
            compression: none (default), gzip, snappy, lz4 or zstd.
            linger_ms: How long a batch that is not full waits for more records.
            batch_size: Bytes of records that make a batch full.
            idempotence: Whether brokers recognise repeated batches; needs acks=all.
            client_id: The name by which brokers know the producer.
            properties: More properties, `delivery_timeout_ms=5000` or `**{"delivery.timeout.ms": 5000}`.

        Raises:
            ConfigError: A property is unknown, malformed or contradicts another.
        """
        named = {
            "acks": acks,
            "compression_type": compression,
            "linger_ms": linger_ms,
            "batch_size": batch_size,
            "enable_idempotence": idempotence,
        }
        given = {name: value for name, value in named.items() if value is not None}
        self.config = parse_config(
            ProducerConfig, given | properties, bootstrap_servers=bootstrap, client_id=client_id
        )
        self._compression = Compression[self.config.compression_type.upper()]
        self._state = client_state(self.config)
        self._driver = PollingDriver(self._state, self.config)
        self._random = random.Random()  # noqa: S311 - spreads records, guards nothing
        self._sticky = StickyPartitioner(self._random.randrange)
        self._partitions_count: dict[str, int] = {}
        self._sender = Sender(
            self._state,
            self._driver,
            self.config,
            on_batch_closed=self._batch_closed,
            on_metadata=self._metadata_refreshed,
        )
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        """The sender's queues under plain tuples, which cost less to make and are equal to the named ones."""
        self._closed = False

    @property
    def delivered(self) -> int:
        """Records acknowledged so far."""
        return self._sender.delivered

    @property
    def failed(self) -> int:
        """Records given up so far."""
        return self._sender.failed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.close(timeout_ms=0, quiet=True)

    def send(
        self,
        topic: str,
        key: bytes | None = None,
        value: bytes | None = None,
        *,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Add a record to its partition's batch and return the partition.

        Args:
            topic: Where to; created by the broker if it does that.
            key: Decides the partition, as in every client of Kafka's Java family.
            value: The content.
            headers: Name and value pairs.
            timestamp_ms: The record's time; None is now.
            partition: The partition, instead of the key's.
            on_delivery: Called with a `Delivery` when the record's fate is known, from within a later call.

        Raises:
            ApiError: The topic may not be written, or the record exceeds `max.request.size`.
            TransportError: No broker answered, or no room appeared in the buffer, within `max.block.ms`.
        """
        count = self._partitions_count.get(topic) or self._learn_topic(topic)
        sticks = partition is None and key is None
        if partition is None:
            if key is None:
                partition = self._sticky.partition(topic, count)
            else:
                partition = partition_for_key(key, count)
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._add_queue(topic, partition, count)
        now = time.monotonic()
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        batch = queue.open
        if batch is None or not batch.append(key, value, headers, timestamp_ms):
            if batch is not None:
                self._close_full(queue)
                if sticks:
                    return self.send(
                        topic,
                        None,
                        value,
                        headers=headers,
                        timestamp_ms=timestamp_ms,
                        on_delivery=on_delivery,
                    )
            batch = self._new_batch(queue, now)
            self._append_first(batch, key, value, headers, timestamp_ms)
        if on_delivery is not None:
            batch.callbacks.append((batch.count - 1, on_delivery))
        if now >= self._sender.next_check:
            self._sender.work(0.0)
        return partition

    def poll(self, timeout_ms: int = 0) -> None:
        """Send what has lingered long enough, take in answers, call callbacks; wait for an answer up to the timeout."""
        self._sender.work(timeout_ms / 1000)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Send everything and wait until it is delivered.

        Args:
            timeout_ms: How long to wait; None is `delivery.timeout.ms`.

        Raises:
            HeadraceError: The first failed delivery since the last flush that no `on_delivery` was told of.
            TransportError: Records are still on their way when the time is over.
        """
        limit_ms = self.config.delivery_timeout_ms if timeout_ms is None else timeout_ms
        until = time.monotonic() + limit_ms / 1000
        while self._sender.active:
            for queue in self._sender.active:
                self._sender.close_open(queue)
            rest = until - time.monotonic()
            self._sender.work(min(max(rest, 0.0), 0.1))
            if self._sender.active and rest <= 0:
                raise TransportError(
                    f"records for {len(self._sender.active)} partitions are not delivered after {limit_ms} ms"
                )
        self._raise_failure()

    def close(self, timeout_ms: int | None = None, *, quiet: bool = False) -> None:
        """Flush and close the connections; what is not delivered within the timeout is given up.

        Args:
            timeout_ms: As for `flush`.
            quiet: Raise nothing: for a program that fails already.
        """
        if self._closed:
            return
        self._closed = True
        self._partitions_count.clear()  # so that `send` looks the topic up, and finds the producer closed
        try:
            self.flush(timeout_ms)
        except HeadraceError:
            if not quiet:
                raise
        finally:
            self._driver.close()

    def _learn_topic(self, topic: str) -> int:
        if self._closed:
            raise TransportError("the producer is closed")
        flow = metadata.ensure(self._state, [topic], auto_create=True)
        self._driver.run(flow, self.config.max_block_ms)
        count = self._partitions_count[topic] = len(self._state.metadata.topics[topic].partitions)
        return count

    def _batch_closed(self, topic_partition: TopicPartition) -> None:
        topic, partition = topic_partition
        self._sticky.batch_closed(topic, partition, self._partitions_count.get(topic, 1))

    def _metadata_refreshed(self, topics: Collection[str]) -> None:
        for topic in topics:
            known = self._state.metadata.topics.get(topic)
            if known is not None and known.partitions:
                self._partitions_count[topic] = len(known.partitions)

    def _add_queue(self, topic: str, partition: int, count: int) -> PartitionQueue:
        topic_partition = TopicPartition(topic, partition)
        if not 0 <= partition < count:
            text = f"topic {topic!r} has {count} partitions, none numbered {partition}"
            raise ApiError.for_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        queue = PartitionQueue(topic_partition)
        self._sender.queues[topic_partition] = self._queues[topic_partition] = queue
        return queue

    def _close_full(self, queue: PartitionQueue) -> None:
        """Hand a full batch over, and wait while too much is on its way."""
        self._sender.close_open(queue)
        self._sender.work(0.0)
        self._wait_for_room()

    def _new_batch(self, queue: PartitionQueue, now: float) -> Batch:
        builder = BatchBuilder(self._compression, max_bytes=self.config.batch_size)
        batch = Batch(queue.topic_partition, builder, now)
        self._sender.open_batch(queue, batch)
        return batch

    def _append_first(
        self,
        batch: Batch,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> None:
        batch.append(key, value, headers, timestamp_ms)
        size = batch.size
        if size > self.config.max_request_size:
            queue = self._sender.queues[batch.topic_partition]
            queue.open = None
            self._sender.retire(queue)
            raise ApiError.for_code(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes exceeds max.request.size={self.config.max_request_size}",
            )

    def _wait_for_room(self) -> None:
        if self._sender.buffered <= self.config.buffer_memory:
            return
        until = time.monotonic() + self.config.max_block_ms / 1000
        while self._sender.buffered > self.config.buffer_memory:
            rest = until - time.monotonic()
            if rest <= 0:
                raise TransportError(
                    f"{self._sender.buffered} bytes wait for delivery, none left within max.block.ms="
                    f"{self.config.max_block_ms}"
                )
            self._sender.work(min(rest, 0.1))

    def _raise_failure(self) -> None:
        failure, self._sender.failure = self._sender.failure, None
        if failure is not None:
            raise failure
