"""The batches of a producer, by partition: their order, their sequence numbers, and which are in flight.

This module does no I/O: time is an argument (`now_ms`), and the sender sends the requests.

The batches of one partition keep their order. A batch that fails with a retriable error returns to the head of its
partition's queue. The partition sends nothing until every batch in flight has a response; then all of them are sent
again, in order. Without idempotence a second batch in flight could overtake the retry of the first one, so such a
partition has one batch in flight at a time.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from crc32c import crc32c

from headrace.clients.flows.produce import ProducerIdentity
from headrace.clients.producer.delivery import Delivery, Fate
from headrace.records.batch import CRC_POSITION, CRC_START
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression
from headrace.records.reader import read_batch
from headrace.types import TopicPartition

MAX_SEQUENCE: Final = 2**31 - 1
_PRODUCER_POSITION: Final = 43
_PRODUCER: Final = struct.Struct(">qhi")
_UINT32: Final = struct.Struct(">I")


class ProducerBatch:
    """One batch, from its first record to its acknowledgement."""

    __slots__ = (
        "append",
        "attempts",
        "base_sequence",
        "builder",
        "created_ms",
        "data",
        "deliveries",
        "doubtful",
        "encoded_count",
        "extend",
        "fate",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, builder: BatchBuilder, now_ms: int) -> None:
        self.topic_partition = topic_partition
        self.builder: BatchBuilder | None = builder
        """Collects the records; None when the batch has been encoded."""
        self.append = builder.append
        """Adds a record to an open batch. It is the builder's own method, because it runs for each record."""
        self.extend = builder.extend
        """Adds many values to an open batch; the builder's own method."""
        self.data = b""
        """The encoded batch; empty until it is sent for the first time."""
        self.encoded_count = 0
        """The number of records in `data`."""
        self.created_ms = now_ms
        self.fate = Fate(topic_partition)
        self.deliveries: list[Delivery] = []
        """The futures that the program got for the records, in their order."""
        self.base_sequence = -1
        """The sequence number of the first record; -1 without idempotence, and until the batch is encoded."""
        self.attempts = 0
        """The number of times that the batch was sent."""
        self.doubtful = False
        """Whether the batch may be written though no response said so. Only a retry with the same producer id, epoch
        and sequence number can find out."""

    @property
    def size(self) -> int:
        """The bytes that the batch holds in memory."""
        return len(self.data) if self.builder is None else self.builder.size

    @property
    def count(self) -> int:
        """The number of records in the batch."""
        return self.encoded_count if self.builder is None else len(self.builder)

    def encode(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Encode the records with a producer id, an epoch and a sequence number."""
        assert self.builder is not None, "a batch is encoded once"
        self.base_sequence = base_sequence
        self.encoded_count = len(self.builder)
        self.data = self.builder.build(identity.producer_id, identity.producer_epoch, base_sequence)
        self.builder = None

    def restamp(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Write another producer id, epoch and sequence number into an encoded batch."""
        self.base_sequence = base_sequence
        data = bytearray(self.data)
        _PRODUCER.pack_into(
            data, _PRODUCER_POSITION, identity.producer_id, identity.producer_epoch, base_sequence
        )
        _UINT32.pack_into(data, CRC_POSITION, crc32c(memoryview(data)[CRC_START:]))
        self.data = bytes(data)


class PartitionQueue:
    """The batches of one partition: the open one, those that are ready, and those in flight."""

    __slots__ = (
        "confirmed",
        "end_offset",
        "identity",
        "in_flight",
        "muted_until_ms",
        "next_sequence",
        "open",
        "ready",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.open: ProducerBatch | None = None
        self.ready: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.identity = ProducerIdentity()
        """The producer id and epoch of the queue's sequence numbers. The producer may have newer ones; see `adopt`."""
        self.next_sequence = 0
        """The sequence number of the next record that is encoded."""
        self.confirmed = False
        """Whether the leader has acknowledged a batch of this id and epoch. Until then the leader accepts any batch as
        the first one, so only one may be in flight: (1) the leader refuses the first batch for a passing reason,
        (2) it accepts the second batch, (3) the retry of the first batch is out of order."""
        self.end_offset = 0
        """One past the last record that the leader has acknowledged."""
        self.muted_until_ms = 0
        """The end of the backoff after a failure; nothing is sent earlier."""

    @property
    def empty(self) -> bool:
        """Whether every record was delivered or has failed."""
        return self.open is None and not self.ready and not self.in_flight

    @property
    def recovering(self) -> bool:
        """Whether a failed batch waits for the responses to the batches that are still in flight."""
        return bool(self.in_flight) and bool(self.ready) and self.ready[0].attempts > 0

    def sendable(self, now_ms: int, *, pipelined: bool) -> bool:
        """Whether the first ready batch may be sent now."""
        if not self.ready or now_ms < self.muted_until_ms or self.recovering:
            return False
        return not self.in_flight or (pipelined and self.confirmed)

    def close_open(self) -> None:
        """Move the open batch to the ready ones."""
        if self.open is not None:
            self.ready.append(self.open)
            self.open = None

    def take(self) -> ProducerBatch:
        """Take the first ready batch for sending; encode it and number its records if that is not done."""
        batch = self.ready[0]
        if batch.builder is not None:
            sequence = self.next_sequence if self.identity.producer_id >= 0 else -1
            batch.encode(self.identity, sequence)
            if sequence >= 0:
                self.next_sequence = add_sequence(sequence, batch.count)
        self.ready.popleft()
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch

    def put_back(self, batch: ProducerBatch, muted_until_ms: int) -> None:
        """Put a failed batch back to its position in the queue."""
        self.in_flight.remove(batch)
        # Batches are sent in order, so the failed batches with lower sequence numbers were sent before this one.
        earlier = sum(1 for other in self.ready if other.attempts > 0 and precedes(other, batch))
        self.ready.insert(earlier, batch)
        self.muted_until_ms = max(self.muted_until_ms, muted_until_ms)

    def is_first_outstanding(self, batch: ProducerBatch) -> bool:
        """Whether no earlier batch of the partition is pending."""
        others = [*self.in_flight, *(other for other in self.ready if other.attempts > 0)]
        return not any(precedes(other, batch) for other in others if other is not batch)

    def adopt(self, identity: ProducerIdentity) -> bool:
        """Take over the producer's id and epoch; return False while a batch may be written with the previous ones.

        (1) The broker writes a batch, and the response is lost. (2) Another partition makes the producer use a new
        epoch. (3) With the new epoch the broker would write the batch again. So the batch is retried unchanged, and the
        new epoch begins after it.
        """
        if identity != self.identity:
            if self.in_flight or (self.ready and self.ready[0].doubtful):
                return False
            self.renumber(identity)
        return True

    def renumber(self, identity: ProducerIdentity) -> None:
        """Begin a new sequence with a new id or epoch; nothing may be in flight."""
        assert not self.in_flight, "batches in flight keep their sequence"
        self.identity = identity
        self.next_sequence = 0
        self.confirmed = False
        for batch in self.ready:
            if batch.builder is None:
                batch.restamp(identity, self.next_sequence)
                batch.doubtful = False
                self.next_sequence = add_sequence(self.next_sequence, batch.count)


def add_sequence(sequence: int, count: int) -> int:
    """Return the sequence number `count` records later; 0 follows 2^31 - 1."""
    return (sequence + count) & MAX_SEQUENCE


def precedes(first: ProducerBatch, second: ProducerBatch) -> bool:
    """Whether one sent batch of a partition precedes another, also where sequence numbers wrap to 0."""
    if first.base_sequence < 0 or second.base_sequence < 0:
        return first.created_ms < second.created_ms
    distance = (second.base_sequence - first.base_sequence) & MAX_SEQUENCE
    return 0 < distance < MAX_SEQUENCE // 2


def split(
    batch: ProducerBatch,
    compression: Compression,
    identity: ProducerIdentity,
    *,
    transactional: bool = False,
) -> list[ProducerBatch]:
    """Split a batch that is too large for its topic into two, which keep its sequence numbers."""
    _, records = read_batch(batch.data)
    middle = (len(records) + 1) // 2
    halves = []
    for start, part in ((0, records[:middle]), (middle, records[middle:])):
        half = ProducerBatch(batch.topic_partition, BatchBuilder(), batch.created_ms)
        half.builder = None
        half.encoded_count = len(part)
        half.attempts = batch.attempts
        sequence = batch.base_sequence
        half.base_sequence = sequence if sequence < 0 else add_sequence(sequence, start)
        builder = BatchBuilder(compression, max_bytes=1 << 62, transactional=transactional)
        for record in part:
            builder.append(record.key, record.value, record.headers, record.timestamp)
        half.data = builder.build(identity.producer_id, identity.producer_epoch, half.base_sequence)
        half.deliveries = batch.deliveries[start : start + len(part)]
        halves.append(half)
    batch.fate.divide([(half.fate, half.deliveries) for half in halves])
    return halves
