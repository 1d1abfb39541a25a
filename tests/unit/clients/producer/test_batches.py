"""Sequences and order of a partition's batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.clients.flows.produce import ProducerIdentity
from headrace.clients.producer.batches import (
    MAX_SEQUENCE,
    PartitionQueue,
    ProducerBatch,
    add_sequence,
    precedes,
    split,
)
from headrace.clients.producer.delivery import Delivery, Written
from headrace.records.batch import BatchHeader, check_batch
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression
from headrace.records.reader import read_records
from headrace.types import TopicPartition

T0 = TopicPartition("t", 0)
IDENTITY = ProducerIdentity(7, 0)


def batch_of(*values: bytes, now_ms: int = 0) -> ProducerBatch:
    builder = BatchBuilder()
    for value in values:
        builder.append(None, value, (), 5)
    return ProducerBatch(T0, builder, now_ms)


def queue_of(*sizes: int) -> PartitionQueue:
    queue = PartitionQueue(T0)
    queue.confirmed = True
    queue.identity = IDENTITY
    queue.ready.extend(batch_of(*[b"x"] * size) for size in sizes)
    return queue


def test_sequences_follow_each_other() -> None:
    queue = queue_of(3, 2, 4)
    taken = [queue.take() for _ in range(3)]
    assert [batch.base_sequence for batch in taken] == [0, 3, 5]
    assert [BatchHeader.parse(batch.data).base_sequence for batch in taken] == [0, 3, 5]
    assert queue.next_sequence == 9


def test_sequence_numbers_wrap_after_the_largest() -> None:
    assert add_sequence(MAX_SEQUENCE, 1) == 0
    assert add_sequence(MAX_SEQUENCE - 1, 5) == 3
    first, second = batch_of(b"x"), batch_of(b"y")
    first.base_sequence, second.base_sequence = MAX_SEQUENCE, 4
    assert precedes(first, second)
    assert not precedes(second, first)


@given(st.permutations(range(4)), st.integers(0, MAX_SEQUENCE))
def test_batches_that_come_back_in_any_order_go_again_in_theirs(
    order: list[int], start: int
) -> None:
    queue = queue_of(2, 2, 2, 2, 2)
    queue.next_sequence = start
    taken = [queue.take() for _ in range(4)]
    for index in order:
        queue.put_back(taken[index], 10)
    assert list(queue.ready)[:4] == taken
    assert queue.ready[4].attempts == 0
    assert not queue.sendable(9, pipelined=True), "muted"
    assert queue.sendable(10, pipelined=True)


def test_no_batch_is_sent_while_others_of_a_failed_round_are_in_flight() -> None:
    queue = queue_of(1, 1, 1)
    first, second = queue.take(), queue.take()
    assert queue.sendable(0, pipelined=True)
    assert not queue.sendable(0, pipelined=False)
    queue.put_back(first, 0)
    assert not queue.sendable(0, pipelined=True)
    assert not queue.is_first_outstanding(second)
    queue.put_back(second, 0)
    assert queue.sendable(0, pipelined=True)
    assert queue.is_first_outstanding(first)


def test_the_first_batch_of_a_sequence_goes_alone() -> None:
    queue = queue_of(1, 1)
    queue.confirmed = False
    queue.take()
    assert not queue.sendable(0, pipelined=True)


def test_a_new_producer_id_renumbers_encoded_batches() -> None:
    queue = queue_of(3, 2, 1)
    taken = [queue.take() for _ in range(2)]
    for batch in taken:
        queue.put_back(batch, 0)
    queue.renumber(ProducerIdentity(7, 1))
    headers = [check_batch(batch.data, 0) for batch in taken]
    assert [(h.producer_epoch, h.base_sequence) for h in headers] == [(1, 0), (1, 3)]
    assert queue.next_sequence == 5
    assert queue.take().base_sequence == 0


def test_a_batch_that_may_be_written_keeps_its_producer_id_and_epoch() -> None:
    queue = queue_of(3, 2)
    first = queue.take()
    assert not queue.adopt(ProducerIdentity(7, 1)), "in flight"
    queue.put_back(first, 0)
    first.doubtful = True
    assert not queue.adopt(ProducerIdentity(7, 1))
    assert (queue.take(), queue.identity, first.base_sequence) == (first, IDENTITY, 0)
    queue.in_flight.remove(first)
    assert queue.adopt(ProducerIdentity(7, 1))
    assert queue.take().base_sequence == 0


def test_halves_of_a_batch_keep_sequence_numbers_and_delivery_futures() -> None:
    batch = batch_of(b"a", b"b", b"c", b"d", b"e")
    batch.deliveries = given = [Delivery(None, batch.fate, number, 5) for number in range(5)]
    told: list[int] = []
    for delivery in given[:2] + given[3:]:
        delivery.add_done_callback(lambda each: told.append(given.index(each)))
    batch.encode(IDENTITY, 100)
    first, second = split(batch, Compression.ZSTD, IDENTITY)
    assert [record.value for record in read_records(first.data)] == [b"a", b"b", b"c"]
    assert [record.value for record in read_records(second.data)] == [b"d", b"e"]
    assert (first.base_sequence, second.base_sequence) == (100, 103)
    assert first.deliveries + second.deliveries == batch.deliveries
    assert len(first.deliveries) == 3
    for callback in second.fate.settle(Written(70)):
        callback()
    assert [delivery.done() for delivery in given] == [False] * 3 + [True] * 2
    assert not batch.fate.done()
    for callback in first.fate.settle(Written(60)):
        callback()
    assert batch.fate.done()
    assert told == [3, 4, 0, 1]
    assert [delivery.metadata().offset for delivery in given] == [60, 61, 62, 70, 71]
    assert BatchHeader.parse(second.data).compression == Compression.ZSTD
