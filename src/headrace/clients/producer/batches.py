"""A producer's records on their way: batches per partition, their sequences, what is in flight, what comes next.

It decides and does no I/O: time is an argument (`now_ms`), requests are the sender's.

One partition's batches keep their order. A batch that fails with an error that passes goes back to the head of its
partition's line, and nothing of the partition is sent until every batch in flight has its answer; then they go again
in order. Without idempotence a second batch in flight could overtake a repeated first one, so then a partition has
one batch in flight at a time.
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


class Batch:
    """One batch from its first record to its acknowledgement."""

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
        """Holds the records until the batch is sent."""
        self.append = builder.append
        """Adds a record to an open batch (the builder's own method, for it runs for each record)."""
        self.extend = builder.extend
        """Adds many values."""
        self.data = b""
        """The encoded batch, once it is sent."""
        self.encoded_count = 0
        self.created_ms = now_ms
        self.fate = Fate(topic_partition)
        self.deliveries: list[Delivery] = []
        """What the program was given for each record, in their order."""
        self.base_sequence = -1
        self.attempts = 0
        self.doubtful = False
        """Whether it may have been written though nobody said so: only the same sequence of the same identity tells."""

    @property
    def size(self) -> int:
        """Bytes it holds in memory."""
        return len(self.data) if self.builder is None else self.builder.size

    @property
    def count(self) -> int:
        """Number of records."""
        return self.encoded_count if self.builder is None else len(self.builder)

    def encode(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Encode the records, under a producer's identity."""
        assert self.builder is not None, "a batch is encoded once"
        self.base_sequence = base_sequence
        self.encoded_count = len(self.builder)
        self.data = self.builder.build(identity.producer_id, identity.producer_epoch, base_sequence)
        self.builder = None

    def restamp(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Give an encoded batch another identity and sequence."""
        self.base_sequence = base_sequence
        data = bytearray(self.data)
        _PRODUCER.pack_into(
            data, _PRODUCER_POSITION, identity.producer_id, identity.producer_epoch, base_sequence
        )
        _UINT32.pack_into(data, CRC_POSITION, crc32c(memoryview(data)[CRC_START:]))
        self.data = bytes(data)


class PartitionQueue:
    """One partition's batches: the open one, those ready to go, those in flight."""

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
        self.open: Batch | None = None
        self.ready: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.identity = ProducerIdentity()
        """Under which its sequence runs; the producer may have another by now, see `adopt`."""
        self.next_sequence = 0
        self.confirmed = False
        """Whether the leader has acknowledged a batch of the present sequence. Before that it may take any batch for
        the first, so a second one must not be on its way: (1) the first is refused for a passing reason, (2) the
        second is taken, (3) the first, repeated, comes too late."""
        self.end_offset = 0
        """One past the last record that the leader has acknowledged."""
        self.muted_until_ms = 0
        """Nothing is sent before this moment: the pause after a failure."""

    @property
    def empty(self) -> bool:
        """Whether every record has been delivered or given up."""
        return self.open is None and not self.ready and not self.in_flight

    @property
    def recovering(self) -> bool:
        """Whether a batch came back while others are still in flight: they must be answered first."""
        return bool(self.in_flight) and bool(self.ready) and self.ready[0].attempts > 0

    def sendable(self, now_ms: int, *, pipelined: bool) -> bool:
        """Whether the first ready batch may be sent now."""
        if not self.ready or now_ms < self.muted_until_ms or self.recovering:
            return False
        return not self.in_flight or (pipelined and self.confirmed)

    def close_open(self) -> None:
        """Move the open batch to those that are ready."""
        if self.open is not None:
            self.ready.append(self.open)
            self.open = None

    def take(self) -> Batch:
        """Take the first ready batch for sending, encoded and with its place in the sequence."""
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

    def put_back(self, batch: Batch, muted_until_ms: int) -> None:
        """Return a failed batch to its place in line."""
        self.in_flight.remove(batch)
        # Batches leave in order, so what came back before and precedes this one is what was sent before it.
        earlier = sum(1 for other in self.ready if other.attempts > 0 and precedes(other, batch))
        self.ready.insert(earlier, batch)
        self.muted_until_ms = max(self.muted_until_ms, muted_until_ms)

    def is_first_outstanding(self, batch: Batch) -> bool:
        """Whether no earlier batch of the partition still waits for its fate."""
        others = [*self.in_flight, *(other for other in self.ready if other.attempts > 0)]
        return not any(precedes(other, batch) for other in others if other is not batch)

    def adopt(self, identity: ProducerIdentity) -> bool:
        """Go over to the producer's identity; false while a batch may have been written under the one before.

        (1) A batch is written, its answer lost; (2) another partition makes the producer take a new epoch; (3) under
        that epoch the batch would be written again. So it is repeated as it was, and the new epoch begins after it.
        """
        if identity != self.identity:
            if self.in_flight or (self.ready and self.ready[0].doubtful):
                return False
            self.renumber(identity)
        return True

    def renumber(self, identity: ProducerIdentity) -> None:
        """Start a new sequence under a new identity; nothing may be in flight."""
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
    """Return the sequence `count` records later; after 2^31 - 1 comes 0."""
    return (sequence + count) & MAX_SEQUENCE


def precedes(first: Batch, second: Batch) -> bool:
    """Whether one sent batch of a partition comes before another, also across the wrap of sequences."""
    if first.base_sequence < 0 or second.base_sequence < 0:
        return first.created_ms < second.created_ms
    distance = (second.base_sequence - first.base_sequence) & MAX_SEQUENCE
    return 0 < distance < MAX_SEQUENCE // 2


def split(
    batch: Batch,
    compression: Compression,
    identity: ProducerIdentity,
    *,
    transactional: bool = False,
) -> list[Batch]:
    """Divide a batch that is too large for its topic into halves that keep its place in the sequence."""
    _, records = read_batch(batch.data)
    middle = (len(records) + 1) // 2
    halves = []
    for start, part in ((0, records[:middle]), (middle, records[middle:])):
        half = Batch(batch.topic_partition, BatchBuilder(), batch.created_ms)
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
