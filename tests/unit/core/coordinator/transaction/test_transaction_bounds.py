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


def usage(world: TransactionHarness) -> Usage:
    return world.coordinator._usage


def written(world: TransactionHarness) -> list[int]:
    return [partition.partition for partition, _ in world.markers.written]


def test_the_markers_of_many_partitions_are_written_in_steps() -> None:
    world = TransactionHarness()
    producer = world.producer()
    assert now(world.add(producer, *MANY)) is ErrorCode.NONE
    assert now(world.end(producer)) is ErrorCode.NONE
    for count in (32, 64, 96):
        assert written(world) == list(range(count))
        assert world.state() is TransactionState.PREPARE_COMMIT
        world.advance(1)
    assert written(world) == list(range(100))
    assert world.state() is TransactionState.COMPLETE_COMMIT
    assert world.coordinator.next_deadline_ms is not None
    assert world.coordinator.next_deadline_ms > world.now_ms + 1, "nothing is left to be done"


def test_markers_that_fail_are_repeated_with_those_that_follow() -> None:
    world = TransactionHarness()
    producer = world.producer()
    assert now(world.add(producer, *MANY)) is ErrorCode.NONE
    world.markers.failure = ErrorCode.KAFKA_STORAGE_ERROR
    assert now(world.end(producer, committed=False)) is ErrorCode.NONE
    world.advance(1)
    assert written(world) == []
    world.markers.failure = ErrorCode.NONE
    world.advance(1000)
    assert sorted(written(world)) == list(range(100))
    assert world.state() is TransactionState.COMPLETE_ABORT


def test_a_restart_between_two_steps_writes_all_markers() -> None:
    world = TransactionHarness()
    producer = world.producer()
    assert now(world.add(producer, *MANY)) is ErrorCode.NONE
    assert now(world.end(producer)) is ErrorCode.NONE
    world.restart()
    world.advance(10)
    assert set(written(world)) == set(range(100))
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_markers_that_are_slow_hold_up_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "MARKERS_AT_ONCE", 7)
    world = TransactionHarness()
    producer = world.producer()
    assert now(world.add(producer, *MANY)) is ErrorCode.NONE
    world.markers.held = True
    assert now(world.end(producer)) is ErrorCode.NONE
    for step in range(1, 20):
        assert len(world.markers.begun) == min(7 * step, 100)
        world.advance(1)
    assert world.state() is TransactionState.PREPARE_COMMIT
    world.markers.release()
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_ids_have_a_bound_of_memory() -> None:
    world = TransactionHarness()
    usage(world).limit = 10 * weight("app-0", 0)
    for number in range(10):
        assert isinstance(now(world.init(name=f"app-{number}")), ProducerIdAndEpoch)
    assert now(world.init(name="app-x")) is ErrorCode.POLICY_VIOLATION
    assert isinstance(now(world.init(name="app-3")), ProducerIdAndEpoch), (
        "one that is known goes on"
    )
    assert usage(world).used == usage(world).limit


def test_partitions_in_transactions_have_a_bound_of_memory() -> None:
    world = TransactionHarness()
    producer = world.producer()
    usage(world).limit = weight("id", 50)
    assert now(world.add(producer, *MANY[:50])) is ErrorCode.NONE
    assert now(world.add(producer, *MANY[:50])) is ErrorCode.NONE, "they are in it"
    assert now(world.add(producer, MANY[50])) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert now(world.end(producer)) is ErrorCode.NONE
    world.advance(10)
    assert usage(world).used == weight("id", 0)
    assert now(world.add(producer, MANY[50])) is ErrorCode.NONE


def test_a_transaction_of_version_2_without_memory_gets_a_retriable_error() -> None:
    world = TransactionHarness()
    producer = world.producer()
    usage(world).limit = weight("id", 1)
    assert now(world.enter(producer, MANY[0])) is ErrorCode.NONE
    entered = world.enter(producer, MANY[1])
    world.advance(200)
    assert now(entered) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_expired_ids_are_not_counted() -> None:
    world = TransactionHarness(transactional_id_expiration_ms=1000)
    producer = world.producer()
    assert now(world.add(producer, *MANY[:3])) is ErrorCode.NONE
    used = usage(world).used
    assert used == weight("id", 3)
    world.restart()
    assert usage(world).used == used
    world.coordinator.unload(0)
    assert usage(world).used == 0
    world.coordinator.load(0, world.now_ms)
    assert usage(world).used == used
    world.advance(3 * 3_600_000)
    assert usage(world).used == 0


def test_many_ids_that_have_expired_are_removed_in_parts() -> None:
    world = TransactionHarness(transactional_id_expiration_ms=1000)
    for number in range(2500):
        now(world.init(name=f"app-{number}"))
    batches = len(world.log.batches[0])
    known: list[int] = []
    for _ in range(10):
        at_ms = world.coordinator.next_deadline_ms
        assert at_ms is not None
        world.now_ms = max(world.now_ms, at_ms)
        world.coordinator.expire(world.now_ms)
        known.append(usage(world).used // weight("app-0000", 0))
        if not usage(world).used:
            break
    assert [round(count, -2) for count in known] == [1500, 500, 0]
    assert len(world.log.batches[0]) == batches + 3


def log_bytes(world: TransactionHarness) -> int:
    return sum(len(batch) for _, batch in world.log.batches[0])


def test_ids_and_partitions_take_no_more_memory_than_they_count_for() -> None:
    world = TransactionHarness()
    world.producer()
    tracemalloc.start()
    start = log_bytes(world)
    for number in range(500):
        now(world.init(name=f"{number:0500d}"))
    used = tracemalloc.get_traced_memory()[0] - (log_bytes(world) - start)
    assert used < 500 * weight("0" * 500, 0)
    producer = now(world.init(name="many"))
    assert isinstance(producer, ProducerIdAndEpoch)
    start, before = log_bytes(world), tracemalloc.get_traced_memory()[0]
    places = [TopicPartition("topic" * 4, number) for number in range(1000)]
    assert now(world.add(producer, *places, name="many")) is ErrorCode.NONE
    used = tracemalloc.get_traced_memory()[0] - before - (log_bytes(world) - start)
    tracemalloc.stop()
    assert used < weight("many", 1000)


def test_timers_that_are_due_together_run_in_steps() -> None:
    world = TransactionHarness()
    count = 2 * TIMERS_AT_ONCE + 10
    for number in range(count):
        name = f"app-{number}"
        producer = now(world.init(name=name))
        assert isinstance(producer, ProducerIdAndEpoch)
        assert now(world.add(producer, MANY[0], name=name)) is ErrorCode.NONE
    world.now_ms += 10 * 60_000
    for aborted in (TIMERS_AT_ONCE, 2 * TIMERS_AT_ONCE, count):
        assert world.coordinator.next_deadline_ms is not None
        assert world.coordinator.next_deadline_ms <= world.now_ms
        world.coordinator.expire(world.now_ms)
        assert len(world.markers.written) == aborted
