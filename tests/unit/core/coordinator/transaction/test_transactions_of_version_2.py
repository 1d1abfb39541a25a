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


def ongoing(world: TransactionHarness) -> ProducerIdAndEpoch:
    producer = world.producer()
    assert world.enter(producer, A, B) is NONE
    return producer


def at_epoch(world: TransactionHarness, epoch: int) -> ProducerIdAndEpoch:
    """An id whose producer has come to an epoch, and which has a transaction open."""
    metadata = TransactionMetadata(7, epoch, TIMEOUT_MS, TransactionState.EMPTY, world.now_ms)
    record = TransactionRecord("id", metadata)
    world.log.append(0, encode_records([record], world.now_ms), world.now_ms)
    world.started()
    producer = ProducerIdAndEpoch(7, epoch)
    assert world.enter(producer, A) is NONE
    return producer


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_raises_the_epoch_and_its_markers_have_it(*, committed: bool) -> None:
    world = TransactionHarness()
    producer = ongoing(world)
    after = world.end_bumping(producer, committed=committed)
    assert after == following(producer)
    written = {(at, *outcome) for at, outcome in world.markers.written}
    assert written == {(at, *following(producer), committed, 2) for at in (A, B)}
    state = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    assert world.state() is state
    assert world.enter(following(producer), A) is NONE
    assert world.verify(following(producer), A) is NONE


@pytest.mark.parametrize("committed", [True, False])
def test_b12_a_repeated_end_gets_the_same_answer_also_after_a_restart(*, committed: bool) -> None:
    world = TransactionHarness()
    producer = ongoing(world)
    world.markers.held = True
    after = world.end_bumping(producer, committed=committed)
    assert world.end_bumping(producer, committed=committed) is CONCURRENT
    assert world.end_bumping(producer, committed=not committed) is INVALID_STATE
    world.markers.release()
    for _ in range(2):
        assert world.end_bumping(producer, committed=committed) == after
        assert world.end_bumping(producer, committed=not committed) is INVALID_STATE
        world.restart()
    assert world.metadata().producer_epoch == after[1]  # type: ignore[index]  # it is a producer


@pytest.mark.parametrize("committed", [True, False])
def test_b8_a_delayed_end_does_not_touch_a_later_transaction(*, committed: bool) -> None:
    world = TransactionHarness()
    late = ongoing(world)
    producer = now(world.end_bumping(late))
    assert isinstance(producer, ProducerIdAndEpoch)
    world.enter(producer, A)
    assert world.end_bumping(late, committed=committed) is FENCED
    assert world.end(late, committed=committed) is FENCED
    assert world.state() is TransactionState.ONGOING


def test_b9_a_delayed_batch_does_not_enter_a_later_transaction() -> None:
    world = TransactionHarness()
    late = ongoing(world)
    producer = now(world.end_bumping(late))
    assert isinstance(producer, ProducerIdAndEpoch)
    assert world.enter(late, A) is FENCED
    world.enter(producer, A)
    assert world.enter(late, A) is FENCED
    assert world.verify(late, A) is FENCED


def test_b7_what_is_entered_counts_when_it_is_durable() -> None:
    world = TransactionHarness(manual=True)
    reply = world.init()
    world.sync()
    producer = now(reply)
    assert isinstance(producer, ProducerIdAndEpoch)
    first, second = world.enter(producer, A), world.enter(producer, A)
    assert parked(first)
    assert parked(second)
    assert world.verify(producer, A) is CONCURRENT
    world.sync()
    assert now(first) is NONE
    assert now(second) is NONE
    assert world.verify(producer, A) is NONE


def test_the_next_transaction_waits_for_the_end_of_the_one_before() -> None:
    world = TransactionHarness()
    world.markers.held = True
    producer = now(world.end_bumping(ongoing(world)))
    assert isinstance(producer, ProducerIdAndEpoch)
    first, second = world.enter(producer, A), world.enter(producer, B)
    assert parked(first)
    assert parked(second)
    world.markers.release()
    assert now(first) is NONE
    assert now(second) is NONE
    assert world.metadata().partitions == {A, B}


def test_the_wait_for_the_previous_transaction_is_bounded() -> None:
    world = TransactionHarness(concurrent_transactions_wait_ms=100)
    world.markers.held = True
    producer = now(world.end_bumping(ongoing(world)))
    assert isinstance(producer, ProducerIdAndEpoch)
    waiting = world.enter(producer, A)
    world.advance(99)
    assert parked(waiting)
    world.advance(1)
    assert now(waiting) is CONCURRENT
    world.markers.release()
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_an_unload_ends_the_wait_for_the_previous_transaction() -> None:
    world = TransactionHarness()
    world.markers.held = True
    producer = now(world.end_bumping(ongoing(world)))
    assert isinstance(producer, ProducerIdAndEpoch)
    waiting = world.enter(producer, A)
    world.coordinator.unload(0)
    assert now(waiting) is ErrorCode.NOT_COORDINATOR


def test_a_producer_may_abort_what_has_not_arrived() -> None:
    world = TransactionHarness()
    producer = world.producer()
    assert world.end_bumping(producer) is INVALID_STATE
    for _ in range(2):
        after = now(world.end_bumping(producer, committed=False))
        assert after == following(producer)
        assert world.state() is TransactionState.COMPLETE_ABORT
        assert world.end_bumping(producer, committed=False) == after
        assert world.enter(producer, A) is FENCED
        producer = following(producer)
    assert world.markers.written == []


@pytest.mark.parametrize("committed", [True, False])
def test_an_abort_while_the_transaction_before_is_completed_is_to_be_sent_again(
    *, committed: bool
) -> None:
    """A producer that has thrown away what it had not sent yet aborts at once."""
    world = TransactionHarness()
    world.markers.held = True
    producer = now(world.end_bumping(ongoing(world), committed=committed))
    assert isinstance(producer, ProducerIdAndEpoch)
    assert world.end_bumping(producer, committed=False) is CONCURRENT
    assert world.end_bumping(producer, committed=True) is CONCURRENT
    world.markers.release()
    assert world.end_bumping(producer, committed=False) == following(producer)


@pytest.mark.parametrize("restarted", [False, True])
def test_used_up_epochs_rotate_the_producer_id(*, restarted: bool) -> None:
    world = TransactionHarness()
    producer = at_epoch(world, LAST_EPOCH - 1)
    world.markers.held = True
    after = now(world.end_bumping(producer))
    assert after == ProducerIdAndEpoch(world.last_producer_id, 0)
    assert isinstance(after, ProducerIdAndEpoch)
    assert world.end_bumping(producer) is CONCURRENT
    assert parked(world.enter(after, A))
    assert world.verify(after, A) is CONCURRENT
    assert world.end_bumping(after) is CONCURRENT
    assert world.init() is CONCURRENT
    if restarted:
        world.restart()
    world.markers.release()
    assert {outcome[:2] for _, outcome in world.markers.written} == {(7, LAST_EPOCH)}
    metadata = world.metadata()
    assert (metadata.producer_id, metadata.previous_producer_id) == (after.producer_id, 7)
    if restarted:
        assert world.end_bumping(producer) == after
        assert world.init(producer) == after
    assert world.enter(after, A) is NONE
    assert world.end_bumping(producer) is UNKNOWN
    assert world.end_bumping(producer, committed=False) is UNKNOWN


def test_b11_an_abort_by_a_new_producer_is_not_the_end_of_the_old_producer() -> None:
    world = TransactionHarness()
    zombie = ongoing(world)
    assert world.init() is CONCURRENT
    assert world.metadata().producer_epoch == zombie.producer_epoch + 2
    assert world.end_bumping(zombie, committed=False) is FENCED
    assert world.enter(zombie, A) is FENCED
    assert world.init(zombie) is FENCED
    assert world.producer() == zombie._replace(producer_epoch=zombie.producer_epoch + 3)


def test_b10_a_producer_whose_transaction_timed_out_is_fenced() -> None:
    world = TransactionHarness()
    producer = ongoing(world)
    world.advance(TIMEOUT_MS)
    assert world.state() is TransactionState.COMPLETE_ABORT
    assert world.end_bumping(producer, committed=False) is FENCED
    assert world.end_bumping(producer) is FENCED


def test_no_producer_receives_the_last_epoch() -> None:
    world = TransactionHarness()
    producer = at_epoch(world, LAST_EPOCH - 1)
    assert world.init(producer) is CONCURRENT
    assert world.metadata().producer_epoch == LAST_EPOCH
    assert world.end_bumping(producer, committed=False) is FENCED
    after = now(world.init(producer))
    assert after == ProducerIdAndEpoch(world.last_producer_id, 0)
    assert now(world.init(producer)) == after


@pytest.mark.parametrize("enters", [True, False])
def test_a_producer_that_aborts_by_asking_for_an_epoch_gets_it(*, enters: bool) -> None:
    world = TransactionHarness()
    producer = world.producer()
    (world.enter if enters else world.add)(producer, A)
    assert world.init(producer) is CONCURRENT
    after = now(world.init(producer))
    assert isinstance(after, ProducerIdAndEpoch)
    assert after > producer
    assert now(world.init(producer)) == after
    world.add(after, A)
    assert world.init(producer) is FENCED
    world.end(after)
    assert world.init(producer) is FENCED  # its epoch is in use: this one comes late


def test_a_producer_without_the_answer_to_its_end_may_ask_for_its_epoch() -> None:
    world = TransactionHarness()
    producer = ongoing(world)
    after = now(world.end_bumping(producer))
    assert now(world.init(producer)) == after
    assert world.state() is TransactionState.EMPTY


def test_classic_ends_do_not_raise_the_epoch_and_are_no_ends_of_the_other_kind() -> None:
    world = TransactionHarness()
    zombie = world.producer()
    producer = world.producer()
    world.add(producer, A)
    assert world.end(producer) is NONE
    assert world.metadata().producer_epoch == producer.producer_epoch
    assert world.end_bumping(zombie) is FENCED  # though its epoch is the one before
    world.add(producer, A)
    assert world.end_bumping(producer) == following(producer)  # it has changed its protocol
    world.enter(following(producer), A)
    assert world.end(following(producer)) is NONE  # and back
    assert world.metadata().producer_epoch == following(producer).producer_epoch
    assert [marker.transaction_version for _, marker in world.markers.written] == [0, 2, 0]


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
