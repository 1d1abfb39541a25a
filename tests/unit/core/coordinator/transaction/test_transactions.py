"""The transaction coordinator, request by request. Tests of a hazard have its name (B6 and so on)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from headrace.core.coordinator.transaction.producers import NO_PRODUCER, ProducerIdAndEpoch
from headrace.core.coordinator.transaction.records import (
    LAST_EPOCH,
    TransactionMetadata,
    TransactionRecord,
    decode_records,
    encode_records,
)
from headrace.core.coordinator.transaction.shard import TransactionOutcome
from headrace.core.coordinator.transaction.states import NEXT, STATUS, TransactionState
from headrace.core.coordinator.transaction.views import Filter, passes
from headrace.errors import ApiError, ErrorCode
from tests.fixtures.group_harness import now, parked
from tests.fixtures.transaction_harness import TIMEOUT_MS, A, B, TransactionHarness

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
INVALID_STATE = ErrorCode.INVALID_TXN_STATE


def ongoing(harness: TransactionHarness) -> ProducerIdAndEpoch:
    producer = harness.producer()
    assert harness.add(producer, A, B) is NONE
    return producer


def at_epoch(harness: TransactionHarness, epoch: int) -> ProducerIdAndEpoch:
    """Return the producer of an id, at an epoch."""
    metadata = TransactionMetadata(7, epoch, TIMEOUT_MS, TransactionState.EMPTY, harness.now_ms)
    record = TransactionRecord("id", metadata)
    harness.log.append(0, encode_records([record], harness.now_ms), harness.now_ms)
    harness.restart()
    return ProducerIdAndEpoch(7, epoch)


def test_commit_marks_every_partition_and_is_complete() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    assert harness.verify(producer) is NONE
    assert harness.end(producer) is NONE
    assert harness.markers.written == [
        (A, TransactionOutcome(100, 0, committed=True)),
        (B, TransactionOutcome(100, 0, committed=True)),
    ]
    assert harness.state() is TransactionState.COMPLETE_COMMIT
    assert not harness.metadata().partitions
    assert harness.add(producer, B) is NONE
    assert harness.end(producer, committed=False) is NONE
    assert harness.markers.written[2:] == [(B, TransactionOutcome(100, 0, committed=False))]
    assert harness.state() is TransactionState.COMPLETE_ABORT


def test_markers_wait_until_the_decision_is_durable() -> None:
    harness = TransactionHarness(manual=True)
    harness.init()
    producer = ProducerIdAndEpoch(100, 0)
    harness.add(producer, A)
    harness.sync()
    reply = harness.end(producer)
    assert parked(reply)
    assert not harness.markers.written
    harness.restart()  # the decision is lost
    assert harness.state() is TransactionState.ONGOING
    reply = harness.end(producer, committed=False)
    harness.sync()
    assert now(reply) is NONE
    assert harness.markers.written == [(A, TransactionOutcome(100, 0, committed=False))]


def test_b7_nothing_may_be_written_before_the_partition_is_durably_in_the_transaction() -> None:
    harness = TransactionHarness(manual=True)
    harness.init()
    producer = ProducerIdAndEpoch(100, 0)
    reply = harness.add(producer, A)
    assert parked(reply)
    assert harness.verify(producer) is CONCURRENT
    harness.sync()
    assert now(reply) is NONE
    assert harness.verify(producer) is NONE
    later = harness.add(producer, B)
    assert (
        harness.verify(producer) is NONE
    )  # a partition that comes later does not hold up this one
    assert harness.verify(producer, B) is CONCURRENT
    harness.restart()
    assert parked(later)
    assert harness.verify(producer, B) is INVALID_STATE


def test_b9_a_delayed_batch_is_not_verified_once_the_transaction_is_decided() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.held = True
    harness.end(producer)
    assert harness.verify(producer) is INVALID_STATE
    harness.markers.release()
    assert harness.verify(producer) is INVALID_STATE
    harness.add(producer, B)
    assert harness.verify(producer, A) is INVALID_STATE
    assert harness.verify(producer, B) is NONE


@pytest.mark.parametrize("committed", [True, False])
def test_b12_a_repeated_end_is_answered_as_the_first_was(*, committed: bool) -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.held = True
    assert harness.end(producer, committed=committed) is NONE
    assert harness.end(producer, committed=committed) is CONCURRENT
    assert harness.end(producer, committed=not committed) is INVALID_STATE
    assert harness.add(producer, A) is CONCURRENT
    assert harness.init() is CONCURRENT
    harness.markers.release()
    assert harness.end(producer, committed=committed) is NONE
    assert harness.end(producer, committed=not committed) is INVALID_STATE
    harness.restart()
    assert harness.end(producer, committed=committed) is NONE


def test_end_txn_without_a_transaction_is_refused() -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    assert harness.end(producer) is INVALID_STATE
    assert harness.add(producer) is NONE  # no partitions: no transaction begins
    assert harness.end(producer) is INVALID_STATE


def test_b11_a_new_producer_aborts_and_fences_the_one_before() -> None:
    harness = TransactionHarness()
    zombie = ongoing(harness)
    harness.markers.held = True
    assert harness.init() is CONCURRENT
    assert harness.metadata()[:4] == (100, 1, TIMEOUT_MS, TransactionState.PREPARE_ABORT)
    harness.markers.release()
    # B6: the marker has the new epoch, so that partitions refuse later batches of the zombie.
    assert harness.markers.written == [
        (A, TransactionOutcome(100, 1, committed=False)),
        (B, TransactionOutcome(100, 1, committed=False)),
    ]
    assert harness.init() == ProducerIdAndEpoch(100, 2)
    for reply in (
        harness.end(zombie),
        harness.add(zombie, A),
        harness.verify(zombie),
        harness.init(zombie),
    ):
        assert reply is FENCED
    assert harness.end(ProducerIdAndEpoch(5, 2)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (
        harness.add(ProducerIdAndEpoch(100, 2), A, name="other")
        is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


def test_b10_a_transaction_older_than_its_timeout_is_aborted() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.advance(TIMEOUT_MS - 1)
    assert harness.state() is TransactionState.ONGOING
    assert harness.add(producer, A) is NONE  # does not give it more time
    harness.restart()  # nor does a restart
    harness.advance(1)
    assert harness.state() is TransactionState.COMPLETE_ABORT
    assert harness.end(producer) is FENCED
    assert harness.init() == ProducerIdAndEpoch(100, 2)


def test_b10_a_time_out_that_cannot_be_written_is_retried() -> None:
    harness = TransactionHarness()
    ongoing(harness)
    harness.log.failure = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    harness.advance(TIMEOUT_MS)
    assert harness.state() is TransactionState.ONGOING
    harness.log.failure = None
    harness.advance(harness.config.offsets_commit_timeout_ms)
    assert harness.state() is TransactionState.COMPLETE_ABORT


@pytest.mark.parametrize("committed", [True, False])
def test_b7_a_prepared_transaction_is_completed_after_a_restart(*, committed: bool) -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.held = True
    harness.end(producer, committed=committed)
    harness.markers.finish(harness.markers.begun[0])
    harness.markers.held = False
    harness.restart()
    marker = TransactionOutcome(100, 0, committed)
    assert harness.markers.written == [(A, marker), (A, marker), (B, marker)]
    assert harness.metadata().state.value == ("CompleteCommit" if committed else "CompleteAbort")


def test_a_marker_that_arrives_for_a_coordinator_that_was_replaced_changes_nothing() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.held = True
    harness.end(producer)
    old = list(harness.markers.begun)
    harness.coordinator.unload(0)
    harness.coordinator.load(0, harness.now_ms)
    for write in old:
        write.done(NONE)
    assert harness.state() is TransactionState.PREPARE_COMMIT
    harness.markers.release()
    assert harness.state() is TransactionState.COMPLETE_COMMIT


def test_markers_that_cannot_be_written_are_tried_again_and_the_others_are_not() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.held = True
    harness.end(producer)
    first, second = harness.markers.begun
    harness.markers.begun = []
    harness.markers.finish(first)
    second.done(ErrorCode.KAFKA_STORAGE_ERROR)
    assert not harness.markers.begun
    harness.advance(harness.config.marker_retry_ms)
    assert [write.partition for write in harness.markers.begun] == [B]
    harness.markers.release()
    assert harness.state() is TransactionState.COMPLETE_COMMIT


def test_a_marker_that_is_refused_late_is_retried_after_a_pause() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.held = True
    harness.end(producer)
    first, second = harness.markers.begun
    harness.markers.begun = []
    harness.markers.finish(first)
    harness.advance(3_000)
    second.done(ErrorCode.REQUEST_TIMED_OUT)
    harness.advance(harness.config.marker_retry_ms - 1)
    assert not harness.markers.begun
    harness.advance(1)
    assert [write.partition for write in harness.markers.begun] == [B]


def test_markers_that_are_always_refused_are_logged_once_and_retried_with_backoff() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.failure = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    tries: list[int] = []
    harness.markers.on_write = lambda _marker, _partition: tries.append(harness.now_ms)
    harness.end(producer)
    harness.advance(60_000)
    times_ms = sorted(set(tries))
    pauses_ms = [after - before for before, after in pairwise(times_ms)]
    assert pauses_ms[:8] == [100, 200, 400, 800, 1600, 3200, 6400, 10_000]
    assert set(pauses_ms[8:]) == {10_000}
    (told,) = [fields for level, _, fields in harness.notes.events if level == "error"]
    assert told["refused"] == ", ".join(f"{at}: TRANSACTION_COORDINATOR_FENCED" for at in (A, B))
    assert "kafka-transactions" in str(told["remedy"])
    harness.markers.failure = NONE
    harness.advance(10_000)
    assert harness.state() is TransactionState.COMPLETE_COMMIT


def test_a_completion_that_cannot_be_written_is_retried() -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.markers.held = True
    harness.end(producer)
    harness.log.failure = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    harness.markers.release()
    assert harness.state() is TransactionState.PREPARE_COMMIT
    harness.log.failure = None
    harness.advance(harness.config.marker_retry_ms)
    assert harness.state() is TransactionState.COMPLETE_COMMIT


def test_a_decision_that_is_slow_to_become_durable_is_followed_by_its_markers() -> None:
    harness = TransactionHarness(manual=True)
    harness.init()
    producer = ProducerIdAndEpoch(100, 0)
    harness.add(producer, A)
    harness.sync()
    reply = harness.end(producer)
    harness.advance(harness.config.offsets_commit_timeout_ms)
    assert now(reply) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.advance(harness.config.marker_retry_ms)
    harness.sync()
    assert harness.markers.written == [(A, TransactionOutcome(100, 0, committed=True))]
    harness.sync()
    assert harness.state() is TransactionState.COMPLETE_COMMIT


# --- InitProducerId ---


def test_a_producer_that_continues_after_an_error_gets_one_new_epoch() -> None:
    harness = TransactionHarness()
    first = harness.producer()
    second = ProducerIdAndEpoch(100, 1)
    assert harness.init(first) == second
    assert harness.init(first) == second  # the answer was lost
    harness.restart()
    assert harness.init(first) == second
    harness.add(second, A)
    assert (
        harness.init(first) is FENCED
    )  # came late; the transaction of the present producer is not touched
    assert harness.state() is TransactionState.ONGOING
    assert harness.init(ProducerIdAndEpoch(100, 7)) is FENCED
    assert harness.init(ProducerIdAndEpoch(55, 0)) is FENCED


@pytest.mark.parametrize("own", [True, False])
def test_a_producer_whose_epochs_are_used_up_gets_a_new_id(*, own: bool) -> None:
    harness = TransactionHarness()
    last = at_epoch(harness, LAST_EPOCH - 1)
    assert harness.init(last if own else NO_PRODUCER) == ProducerIdAndEpoch(100, 0)
    assert harness.init(last) == (ProducerIdAndEpoch(100, 0) if own else FENCED)
    assert harness.add(last, A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.init(ProducerIdAndEpoch(100, 0)) == ProducerIdAndEpoch(100, 1)
    assert harness.init(last) is FENCED


def test_the_last_epoch_is_left_for_fencing() -> None:
    harness = TransactionHarness()
    producer = at_epoch(harness, LAST_EPOCH - 1)
    harness.add(producer, A)
    assert harness.init() is CONCURRENT
    assert harness.markers.written == [(A, TransactionOutcome(7, LAST_EPOCH, committed=False))]
    assert harness.init() == ProducerIdAndEpoch(100, 0)


def test_an_unknown_producer_id_in_init_producer_id_gets_a_new_id() -> None:
    assert TransactionHarness().init(ProducerIdAndEpoch(5, 3)) == ProducerIdAndEpoch(100, 0)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_time_out_that_is_not_allowed(timeout_ms: int) -> None:
    reply = TransactionHarness().init(timeout_ms=timeout_ms)
    assert reply is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_invalid_transactional_ids_are_refused() -> None:
    harness = TransactionHarness()
    for name in ("", "x" * 40_000):
        assert harness.init(name=name) is ErrorCode.INVALID_REQUEST


def test_the_number_of_ids_is_bounded_and_expiry_frees_ids() -> None:
    harness = TransactionHarness(max_transactional_ids=2, transactional_id_expiration_ms=10**9)
    harness.init(name="a")
    producer = harness.producer(name="b", timeout_ms=900_000)
    assert harness.init(name="c") is ErrorCode.POLICY_VIOLATION
    harness.advance(10**9 - 1_000)
    harness.add(producer, A, name="b")
    harness.advance(harness.config.transaction_remove_expired_transaction_cleanup_interval_ms)
    assert now(harness.coordinator.describe("a", harness.now_ms)) is (
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    )
    assert harness.metadata("b").state is TransactionState.COMPLETE_ABORT
    assert isinstance(harness.init(name="c"), ProducerIdAndEpoch)


# --- views and records ---


def test_list_filters_by_state_producer_and_duration() -> None:
    harness = TransactionHarness()
    ongoing(harness)
    harness.producer(name="idle")
    harness.advance(1_000)

    def listed(wanted: Filter) -> list[str]:
        found = []
        for reply in harness.coordinator.each_shard(harness.now_ms):
            known = now(reply)
            assert not isinstance(known, ErrorCode)
            found += [name for name, metadata in known if passes(metadata, wanted, harness.now_ms)]
        return sorted(found)

    assert listed(Filter()) == ["id", "idle"]
    assert listed(Filter(states={TransactionState.EMPTY})) == ["idle"]
    assert listed(Filter(producer_ids={100})) == ["id"]
    # The start of an id that has had no transaction is -1, so it passes, as in Kafka.
    assert listed(Filter(longer_than_ms=999)) == ["id", "idle"]
    assert listed(Filter(longer_than_ms=1_000)) == ["idle"]
    assert listed(Filter(longer_than_ms=harness.now_ms + 1)) == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_duration_counts_for_transactions_that_have_ended(*, committed: bool) -> None:
    harness = TransactionHarness()
    producer = ongoing(harness)
    harness.advance(1_000)
    harness.end(producer, committed=committed)
    metadata = harness.metadata("id")
    assert metadata.state not in {TransactionState.EMPTY, TransactionState.ONGOING}
    assert passes(metadata, Filter(longer_than_ms=999), harness.now_ms)
    assert not passes(metadata, Filter(longer_than_ms=1_000), harness.now_ms)


@pytest.mark.parametrize("state", [each for each in TransactionState if each.value != "Dead"])
def test_records_survive_their_encoding(state: TransactionState) -> None:
    partitions = frozenset() if state is TransactionState.EMPTY else frozenset({A, B})
    metadata = TransactionMetadata(1 << 40, 3, 5, state, 6, partitions, 7, 8, 2)
    records = [TransactionRecord("x", metadata), TransactionRecord("y", None)]
    assert [record for _, record in decode_records(encode_records(records, 1))] == records


def test_the_table_of_states_equals_that_of_kafka() -> None:
    assert [STATUS[state] for state in TransactionState] == list(range(8))
    metadata = TransactionMetadata(1, 0, 5, TransactionState.PREPARE_ABORT, 0)
    assert NEXT[metadata.state] == {TransactionState.COMPLETE_ABORT}
    with pytest.raises(AssertionError):
        metadata.to(TransactionState.ONGOING, 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda harness: harness.init(),
        lambda harness: harness.add(ProducerIdAndEpoch(100, 0), A),
        lambda harness: harness.end(ProducerIdAndEpoch(100, 0)),
        lambda harness: harness.verify(ProducerIdAndEpoch(100, 0)),
    ],
)
def test_a_coordinator_that_was_unloaded_returns_not_coordinator(
    ask: Callable[[TransactionHarness], ErrorCode],
) -> None:
    harness = TransactionHarness()
    ongoing(harness)
    harness.coordinator.unload(0)
    assert ask(harness) is ErrorCode.NOT_COORDINATOR
