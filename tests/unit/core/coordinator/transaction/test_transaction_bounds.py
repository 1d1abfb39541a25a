"""Memory of transactional ids, and the work in one step of their coordinator."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.core.coordinator.sharded import TIMERS_AT_ONCE
from headrace.core.coordinator.transaction import markers
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.core.coordinator.transaction.states import TransactionState
from headrace.core.coordinator.transaction.usage import Usage, weight
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from tests.fixtures.group_harness import now
from tests.fixtures.transaction_harness import TransactionHarness

MANY = [TopicPartition("t", index) for index in range(100)]


def usage(harness: TransactionHarness) -> Usage:
    return harness.coordinator._usage


def written(harness: TransactionHarness) -> list[int]:
    return [partition.partition for partition, _ in harness.markers.written]


def test_the_markers_of_many_partitions_are_written_in_steps() -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    assert now(harness.add(producer, *MANY)) is ErrorCode.NONE
    assert now(harness.end(producer)) is ErrorCode.NONE
    for count in (32, 64, 96):
        assert written(harness) == list(range(count))
        assert harness.state() is TransactionState.PREPARE_COMMIT
        harness.advance(1)
    assert written(harness) == list(range(100))
    assert harness.state() is TransactionState.COMPLETE_COMMIT
    assert harness.coordinator.next_deadline_ms is not None
    assert harness.coordinator.next_deadline_ms > harness.now_ms + 1, "nothing is left to be done"


def test_markers_that_fail_are_repeated_with_those_that_follow() -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    assert now(harness.add(producer, *MANY)) is ErrorCode.NONE
    harness.markers.failure = ErrorCode.KAFKA_STORAGE_ERROR
    assert now(harness.end(producer, committed=False)) is ErrorCode.NONE
    harness.advance(1)
    assert written(harness) == []
    harness.markers.failure = ErrorCode.NONE
    harness.advance(1000)
    assert sorted(written(harness)) == list(range(100))
    assert harness.state() is TransactionState.COMPLETE_ABORT


def test_a_restart_between_two_steps_writes_all_markers() -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    assert now(harness.add(producer, *MANY)) is ErrorCode.NONE
    assert now(harness.end(producer)) is ErrorCode.NONE
    harness.restart()
    harness.advance(10)
    assert set(written(harness)) == set(range(100))
    assert harness.state() is TransactionState.COMPLETE_COMMIT


def test_markers_that_are_slow_hold_up_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MARKERS_AT_ONCE", 7)
    harness = TransactionHarness()
    producer = harness.producer()
    assert now(harness.add(producer, *MANY)) is ErrorCode.NONE
    harness.markers.held = True
    assert now(harness.end(producer)) is ErrorCode.NONE
    for step in range(1, 20):
        assert len(harness.markers.begun) == min(7 * step, 100)
        harness.advance(1)
    assert harness.state() is TransactionState.PREPARE_COMMIT
    harness.markers.release()
    assert harness.state() is TransactionState.COMPLETE_COMMIT


def test_ids_have_a_bound_of_memory() -> None:
    harness = TransactionHarness()
    usage(harness).limit = 10 * weight("app-0", 0)
    for number in range(10):
        assert isinstance(now(harness.init(name=f"app-{number}")), ProducerIdAndEpoch)
    assert now(harness.init(name="app-x")) is ErrorCode.POLICY_VIOLATION
    assert isinstance(now(harness.init(name="app-3")), ProducerIdAndEpoch), (
        "one that is known goes on"
    )
    assert usage(harness).used == usage(harness).limit


def test_partitions_in_transactions_have_a_bound_of_memory() -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    usage(harness).limit = weight("id", 50)
    assert now(harness.add(producer, *MANY[:50])) is ErrorCode.NONE
    assert now(harness.add(producer, *MANY[:50])) is ErrorCode.NONE, "they are in it"
    assert now(harness.add(producer, MANY[50])) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert now(harness.end(producer)) is ErrorCode.NONE
    harness.advance(10)
    assert usage(harness).used == weight("id", 0)
    assert now(harness.add(producer, MANY[50])) is ErrorCode.NONE


def test_a_transaction_of_version_2_without_memory_gets_a_retriable_error() -> None:
    harness = TransactionHarness()
    producer = harness.producer()
    usage(harness).limit = weight("id", 1)
    assert now(harness.enter(producer, MANY[0])) is ErrorCode.NONE
    entered = harness.enter(producer, MANY[1])
    harness.advance(200)
    assert now(entered) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_expired_ids_are_not_counted() -> None:
    harness = TransactionHarness(transactional_id_expiration_ms=1000)
    producer = harness.producer()
    assert now(harness.add(producer, *MANY[:3])) is ErrorCode.NONE
    used = usage(harness).used
    assert used == weight("id", 3)
    harness.restart()
    assert usage(harness).used == used
    harness.coordinator.unload(0)
    assert usage(harness).used == 0
    harness.coordinator.load(0, harness.now_ms)
    assert usage(harness).used == used
    harness.advance(3 * 3_600_000)
    assert usage(harness).used == 0


def test_many_ids_that_have_expired_are_removed_in_parts() -> None:
    harness = TransactionHarness(transactional_id_expiration_ms=1000)
    for number in range(2500):
        now(harness.init(name=f"app-{number}"))
    batches = len(harness.log.batches[0])
    known: list[int] = []
    for _ in range(10):
        at_ms = harness.coordinator.next_deadline_ms
        assert at_ms is not None
        harness.now_ms = max(harness.now_ms, at_ms)
        harness.coordinator.expire(harness.now_ms)
        known.append(usage(harness).used // weight("app-0000", 0))
        if not usage(harness).used:
            break
    assert [round(count, -2) for count in known] == [1500, 500, 0]
    assert len(harness.log.batches[0]) == batches + 3


def log_bytes(harness: TransactionHarness) -> int:
    return sum(len(batch) for _, batch in harness.log.batches[0])


@pytest.mark.slow
def test_ids_and_partitions_use_at_most_their_counted_memory() -> None:
    harness = TransactionHarness()
    harness.producer()
    tracemalloc.start()
    start = log_bytes(harness)
    for number in range(500):
        now(harness.init(name=f"{number:0500d}"))
    used = tracemalloc.get_traced_memory()[0] - (log_bytes(harness) - start)
    assert used < 500 * weight("0" * 500, 0)
    producer = now(harness.init(name="many"))
    assert isinstance(producer, ProducerIdAndEpoch)
    start, before = log_bytes(harness), tracemalloc.get_traced_memory()[0]
    places = [TopicPartition("topic" * 4, number) for number in range(1000)]
    assert now(harness.add(producer, *places, name="many")) is ErrorCode.NONE
    used = tracemalloc.get_traced_memory()[0] - before - (log_bytes(harness) - start)
    tracemalloc.stop()
    assert used < weight("many", 1000)


def test_timers_that_are_due_together_run_in_steps() -> None:
    harness = TransactionHarness()
    count = 2 * TIMERS_AT_ONCE + 10
    for number in range(count):
        name = f"app-{number}"
        producer = now(harness.init(name=name))
        assert isinstance(producer, ProducerIdAndEpoch)
        assert now(harness.add(producer, MANY[0], name=name)) is ErrorCode.NONE
    harness.now_ms += 10 * 60_000
    for aborted in (TIMERS_AT_ONCE, 2 * TIMERS_AT_ONCE, count):
        assert harness.coordinator.next_deadline_ms is not None
        assert harness.coordinator.next_deadline_ms <= harness.now_ms
        harness.coordinator.expire(harness.now_ms)
        assert len(harness.markers.written) == aborted
