"""The transaction coordinator and KIP-890's second part: every end of a transaction raises its producer's epoch."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.core.coordinator.transaction.records import (
    LAST_EPOCH,
    TransactionMetadata,
    TransactionRecord,
    decode_records,
    encode_records,
)
from headrace.core.coordinator.transaction.shard import TransactionOutcome
from headrace.core.coordinator.transaction.states import TransactionState
from headrace.errors import ErrorCode
from headrace.protocol.messages.transaction_log_record import TransactionLogValue
from headrace.records.reader import read_records
from tests.fixtures.group_harness import now, parked
from tests.fixtures.transaction_harness import TIMEOUT_MS, A, B, TransactionHarness

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING


def following(producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    return producer._replace(producer_epoch=producer.producer_epoch + 1)


def ongoing(harness: TransactionHarness) -> ProducerIdAndEpoch:
    producer = harness.producer()
    assert harness.enter(producer, A, B) is NONE
    return producer


def at_epoch(harness: TransactionHarness, epoch: int) -> ProducerIdAndEpoch:
    """Return the producer of an id, at an epoch and with an open transaction."""
    metadata = TransactionMetadata(7, epoch, TIMEOUT_MS, TransactionState.EMPTY, harness.now_ms)
    record = TransactionRecord("id", metadata)
    harness.log.append(0, encode_records([record], harness.now_ms), harness.now_ms)
    harness.started()
    producer = ProducerIdAndEpoch(7, epoch)
    assert harness.enter(producer, A) is NONE
    return producer


@pytest.mark.parametrize("committed", [True, False])
def test_ending_a_transaction_raises_the_epoch_in_its_markers(*, committed: bool) -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    after = harness.end_bumping(producer, committed=committed)
    assert after == following(producer)
    marker = TransactionOutcome(*following(producer), committed, 2)
    assert set(harness.markers.written) == {(A, marker), (B, marker)}
    state = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    assert harness.state() is state
    assert harness.enter(following(producer), A) is NONE
    assert harness.verify(following(producer), A) is NONE


@pytest.mark.parametrize("committed", [True, False])
def test_b12_a_repeated_end_gets_the_same_answer_also_after_a_restart(*, committed: bool) -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.held = True
    after = harness.end_bumping(producer, committed=committed)
    assert harness.end_bumping(producer, committed=committed) is CONCURRENT
    assert harness.end_bumping(producer, committed=not committed) is INVALID_STATE
    harness.markers.release()
    for _ in range(2):
        assert harness.end_bumping(producer, committed=committed) == after
        assert harness.end_bumping(producer, committed=not committed) is INVALID_STATE
        harness.restart()
    assert harness.metadata().producer_epoch == after[1]  # type: ignore[index]  # it is a producer


@pytest.mark.parametrize("committed", [True, False])
def test_b8_a_delayed_end_does_not_touch_a_later_transaction(*, committed: bool) -> None:
    harness = TransactionHarness()
    late = ongoing(harness)
    producer = now(harness.end_bumping(late))
    assert isinstance(producer, ProducerIdAndEpoch)
    harness.enter(producer, A)
    assert harness.end_bumping(late, committed=committed) is FENCED
    assert harness.end(late, committed=committed) is FENCED
    assert harness.state() is TransactionState.ONGOING


def test_b9_a_delayed_batch_does_not_enter_a_later_transaction() -> None:
    harness = TransactionHarness()
    late = ongoing(harness)
    producer = now(harness.end_bumping(late))
    assert isinstance(producer, ProducerIdAndEpoch)
    assert harness.enter(late, A) is FENCED
    harness.enter(producer, A)
    assert harness.enter(late, A) is FENCED
    assert harness.verify(late, A) is FENCED


def test_b7_a_partition_counts_when_its_record_is_durable() -> None:
    harness = TransactionHarness(manual=True)
    reply = harness.init()
    harness.sync()
    producer = now(reply)
    assert isinstance(producer, ProducerIdAndEpoch)
    first, second = harness.enter(producer, A), harness.enter(producer, A)
    assert parked(first)
    assert parked(second)
    assert harness.verify(producer, A) is CONCURRENT
    harness.sync()
    assert now(first) is NONE
    assert now(second) is NONE
    assert harness.verify(producer, A) is NONE


def test_the_next_transaction_waits_for_the_end_of_the_one_before() -> None:
    harness = TransactionHarness()
    harness.markers.held = True
    producer = now(harness.end_bumping(ongoing(harness)))
    assert isinstance(producer, ProducerIdAndEpoch)
    first, second = harness.enter(producer, A), harness.enter(producer, B)
    assert parked(first)
    assert parked(second)
    harness.markers.release()
    assert now(first) is NONE
    assert now(second) is NONE
    assert harness.metadata().partitions == {A, B}


def test_the_wait_for_the_previous_transaction_is_bounded() -> None:
    harness = TransactionHarness(concurrent_transactions_wait_ms=100)
    harness.markers.held = True
    producer = now(harness.end_bumping(ongoing(harness)))
    assert isinstance(producer, ProducerIdAndEpoch)
    waiting = harness.enter(producer, A)
    harness.advance(99)
    assert parked(waiting)
    harness.advance(1)
    assert now(waiting) is CONCURRENT
    harness.markers.release()
    assert harness.state() is TransactionState.COMPLETE_COMMIT


def test_an_unload_ends_the_wait_for_the_previous_transaction() -> None:
    harness = TransactionHarness()
    harness.markers.held = True
    producer = now(harness.end_bumping(ongoing(harness)))
    assert isinstance(producer, ProducerIdAndEpoch)
    waiting = harness.enter(producer, A)
    harness.coordinator.unload(0)
    assert now(waiting) is ErrorCode.NOT_COORDINATOR


def test_a_producer_may_abort_a_transaction_without_partitions() -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    assert harness.end_bumping(producer) is INVALID_STATE
    for _ in range(2):
        after = now(harness.end_bumping(producer, committed=False))
        assert after == following(producer)
        assert harness.state() is TransactionState.COMPLETE_ABORT
        assert harness.end_bumping(producer, committed=False) == after
        assert harness.enter(producer, A) is FENCED
        producer = following(producer)
    assert harness.markers.written == []


@pytest.mark.parametrize("committed", [True, False])
def test_an_abort_while_the_transaction_before_is_completed_is_to_be_sent_again(
    *, committed: bool
) -> None:
    """A producer that has dropped its unsent records aborts at once."""
    harness = TransactionHarness()
    harness.markers.held = True
    producer = now(harness.end_bumping(ongoing(harness), committed=committed))
    assert isinstance(producer, ProducerIdAndEpoch)
    assert harness.end_bumping(producer, committed=False) is CONCURRENT
    assert harness.end_bumping(producer, committed=True) is CONCURRENT
    harness.markers.release()
    assert harness.end_bumping(producer, committed=False) == following(producer)


@pytest.mark.parametrize("restarted", [False, True])
def test_used_up_epochs_rotate_the_producer_id(*, restarted: bool) -> None:
    harness = TransactionHarness()
    producer = at_epoch(harness, LAST_EPOCH - 1)
    harness.markers.held = True
    after = now(harness.end_bumping(producer))
    assert after == ProducerIdAndEpoch(harness.last_producer_id, 0)
    assert isinstance(after, ProducerIdAndEpoch)
    assert harness.end_bumping(producer) is CONCURRENT
    assert parked(harness.enter(after, A))
    assert harness.verify(after, A) is CONCURRENT
    assert harness.end_bumping(after) is CONCURRENT
    assert harness.init() is CONCURRENT
    if restarted:
        harness.restart()
    harness.markers.release()
    assert {outcome[:2] for _, outcome in harness.markers.written} == {(7, LAST_EPOCH)}
    metadata = harness.metadata()
    assert (metadata.producer_id, metadata.previous_producer_id) == (after.producer_id, 7)
    if restarted:
        assert harness.end_bumping(producer) == after
        assert harness.init(producer) == after
    assert harness.enter(after, A) is NONE
    assert harness.end_bumping(producer) is UNKNOWN
    assert harness.end_bumping(producer, committed=False) is UNKNOWN


def test_b11_an_abort_by_a_new_producer_is_not_the_end_of_the_old_producer() -> None:
    harness = TransactionHarness()
    zombie = ongoing(harness)
    assert harness.init() is CONCURRENT
    assert harness.metadata().producer_epoch == zombie.producer_epoch + 2
    assert harness.end_bumping(zombie, committed=False) is FENCED
    assert harness.enter(zombie, A) is FENCED
    assert harness.init(zombie) is FENCED
    assert harness.producer() == zombie._replace(producer_epoch=zombie.producer_epoch + 3)


def test_b10_a_producer_whose_transaction_timed_out_is_fenced() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.advance(TIMEOUT_MS)
    assert harness.state() is TransactionState.COMPLETE_ABORT
    assert harness.end_bumping(producer, committed=False) is FENCED
    assert harness.end_bumping(producer) is FENCED


def test_no_producer_receives_the_last_epoch() -> None:
    harness = TransactionHarness()
    producer = at_epoch(harness, LAST_EPOCH - 1)
    assert harness.init(producer) is CONCURRENT
    assert harness.metadata().producer_epoch == LAST_EPOCH
    assert harness.end_bumping(producer, committed=False) is FENCED
    after = now(harness.init(producer))
    assert after == ProducerIdAndEpoch(harness.last_producer_id, 0)
    assert now(harness.init(producer)) == after


@pytest.mark.parametrize("enters", [True, False])
def test_a_producer_that_aborts_with_init_producer_id_gets_a_new_epoch(*, enters: bool) -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    (harness.enter if enters else harness.add)(producer, A)
    assert harness.init(producer) is CONCURRENT
    after = now(harness.init(producer))
    assert isinstance(after, ProducerIdAndEpoch)
    assert after > producer
    assert now(harness.init(producer)) == after
    harness.add(after, A)
    assert harness.init(producer) is FENCED
    harness.end(after)
    assert harness.init(producer) is FENCED  # its epoch is in use: this one comes late


def test_a_producer_without_the_answer_to_its_end_may_ask_for_its_epoch() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    after = now(harness.end_bumping(producer))
    assert now(harness.init(producer)) == after
    assert harness.state() is TransactionState.EMPTY


def test_classic_ends_do_not_raise_the_epoch_and_are_no_ends_of_the_other_kind() -> None:
    harness = TransactionHarness()
    zombie = harness.producer()
    producer = harness.producer()
    harness.add(producer, A)
    assert harness.end(producer) is NONE
    assert harness.metadata().producer_epoch == producer.producer_epoch
    assert harness.end_bumping(zombie) is FENCED  # though its epoch is the one before
    harness.add(producer, A)
    assert harness.end_bumping(producer) == following(producer)  # it has changed its protocol
    harness.enter(following(producer), A)
    assert harness.end(following(producer)) is NONE  # and back
    assert harness.metadata().producer_epoch == following(producer).producer_epoch
    assert [marker.transaction_version for _, marker in harness.markers.written] == [0, 2, 0]


def test_the_records_of_version_2_equal_those_of_kafka() -> None:
    metadata = TransactionMetadata(
        producer_id=5,
        producer_epoch=9,
        timeout_ms=1000,
        state=TransactionState.PREPARE_COMMIT,
        last_update_ms=77,
        partitions=frozenset({A}),
        start_ms=66,
        previous_producer_id=4,
        next_producer_id=6,
        client_transaction_version=2,
        last_epoch=8,
    )
    batch = encode_records([TransactionRecord("id", metadata)], 77)
    assert [record for _, record in decode_records(batch)] == [TransactionRecord("id", metadata)]
    (record,) = read_records(batch)
    assert record.value is not None
    # The tags and their order are those of TransactionLogValue: previous and next id, the version of the client.
    tags = bytes.fromhex("03 00 08 0000000000000004 01 08 0000000000000006 02 02 0002")
    assert record.value.endswith(tags)
    value, _ = TransactionLogValue.decode(memoryview(record.value), 2, 1)
    assert value.next_producer_epoch == -1
