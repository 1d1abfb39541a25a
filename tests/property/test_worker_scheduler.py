"""Handlers finish, fail and repeat in any order: lanes keep their order, and no position passes unfinished records."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clients.consumer.records import ConsumerRecord
from headrace.types import TopicPartition
from headrace.workers.core.scheduler import Ordering, Scheduler
from tests.effort import examples

T = [TopicPartition("t", number) for number in range(3)]


def record(partition: int, offset: int, key: bytes | None = None) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, 0, key, b"v", (), 0)


class Harness:
    """A scheduler with random results of handlers, and its model."""

    def __init__(self, seed: int, ordering: str, concurrency: int, batch: int | None) -> None:
        self.random = random.Random(seed)
        self.ordering = ordering
        self.concurrency = concurrency
        self.batch = batch
        self.scheduler = Scheduler(
            ordering=ordering,  # type: ignore[arg-type]  # drawn from the three that there are
            concurrency=concurrency,
            batch=batch,
        )
        self.now_ms = 0
        self.offsets = [0, 0, 0]
        self.running: list = []
        self.finished: list[tuple[int, int]] = []
        self.lanes: dict[object, list[int]] = {}

    def step(self) -> None:
        getattr(
            self, self.random.choice(["add", "take", "take", "end", "end", "pass_time", "move"])
        )()
        self.check()

    def add(self) -> None:
        for _ in range(self.random.randrange(4)):
            partition = self.random.randrange(3)
            offset = self.offsets[partition]
            self.offsets[partition] = offset + self.random.choice(
                [1, 1, 3]
            )  # gaps, as after compaction
            key = [None, b"a", b"b"][offset % 3]  # the same when it is read again
            self.scheduler.add([record(partition, offset, key)])

    def take(self) -> None:
        for job in self.scheduler.take(self.now_ms):
            assert len(job.records) <= (self.batch or 1)
            for other in self.running:
                assert self.lane(other.records[0]) != self.lane(job.records[0]), "one job a lane"
            self.running.append(job)
        assert len(self.running) == self.scheduler.running <= self.concurrency

    def lane(self, each: ConsumerRecord) -> object:
        if self.ordering == "partition":
            return each.partition
        if self.ordering == "key" and each.key is not None:
            return (each.partition, each.key)
        return (each.partition, each.offset)

    def end(self) -> None:
        if not self.running:
            return
        job = self.running.pop(self.random.randrange(len(self.running)))
        if self.random.random() < 0.3:
            self.scheduler.retry(job, self.now_ms + self.random.randrange(50))
            return
        self.scheduler.finish(job)
        for each in job.records:
            self.finished.append((each.partition, each.offset))
            self.lanes.setdefault(self.lane(each), []).append(each.offset)

    def pass_time(self) -> None:
        deadline_ms = self.scheduler.next_deadline_ms
        self.now_ms += 1 if deadline_ms is None else max(1, deadline_ms - self.now_ms)

    def move(self) -> None:
        """Move a partition to another member, and possibly back; reading continues at the committed position."""
        if self.random.random() > 0.2:
            return
        partition = self.random.randrange(3)
        name = T[partition]
        position = self.scheduler.positions().get(name)
        self.scheduler.stop([name])
        before = len(self.running)
        self.take()
        assert not any(job.topic_partition == name for job in self.running[before:])
        self.scheduler.drop([name])
        assert not self.scheduler.busy([name])
        for job in self.running:
            if job.topic_partition == name:
                self.settle_lost(job)
        self.running = [job for job in self.running if job.topic_partition != name]
        if position is not None:
            self.offsets[partition] = position  # the next owner begins here
            self.finished = [
                done for done in self.finished if done[0] != partition or done[1] < position
            ]
            self.lanes = {
                lane: [offset for offset in done if offset < position]
                if self.of(lane) == partition
                else done
                for lane, done in self.lanes.items()
            }

    def settle_lost(self, job) -> None:
        before = self.scheduler.positions()
        (
            self.scheduler.finish
            if self.random.random() < 0.5
            else lambda j: self.scheduler.retry(j, 0)
        )(job)
        assert self.scheduler.positions() == before, (
            "an outcome of a lost partition changes nothing"
        )

    @staticmethod
    def of(lane: object) -> object:
        return lane[0] if isinstance(lane, tuple) else lane

    def check(self) -> None:
        for done in self.lanes.values():
            assert done == sorted(set(done)), "order in a lane, and nothing twice"
        finished = set(self.finished)
        for name, position in self.scheduler.positions().items():
            taken = self.scheduler._partitions[name].open
            assert all(offset >= position for offset in taken), (
                "nothing before the position is open"
            )
            assert all((name.partition, offset) not in finished for offset in taken)

    def drain(self) -> None:
        for _ in range(100_000):
            if self.scheduler.idle:
                return
            self.take()
            if self.running:
                job = self.running.pop()
                self.scheduler.finish(job)
                for each in job.records:
                    self.lanes.setdefault(self.lane(each), []).append(each.offset)
            else:
                self.pass_time()
            self.check()
        pytest.fail("work is stuck")


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from(["partition", "key", "none"]),
    st.integers(1, 5),
    st.sampled_from([None, 3]),
)
def test_the_scheduler_keeps_its_invariants_in_random_runs(
    seed: int, ordering: str, concurrency: int, batch: int | None
) -> None:
    harness = Harness(seed, ordering, concurrency, batch)
    for _ in range(200):
        harness.step()
    harness.drain()
    for name, position in harness.scheduler.positions().items():
        assert position == harness.scheduler._partitions[name].next_offset


def test_a_failed_record_holds_up_its_key_and_no_other() -> None:
    scheduler = Scheduler(ordering="key", concurrency=10)
    scheduler.add([record(0, 0, b"a"), record(0, 1, b"a"), record(0, 2, b"b")])
    first, other = scheduler.take(0)
    assert (first.records[0].offset, other.records[0].offset) == (0, 2)
    scheduler.finish(other)
    scheduler.retry(first, 100)
    assert list(scheduler.take(99)) == []
    assert scheduler.positions() == {T[0]: 0}
    assert scheduler.next_deadline_ms == 100
    [again] = scheduler.take(100)
    assert (again.attempt, again.records[0].offset) == (2, 0)
    scheduler.finish(again)
    [last] = scheduler.take(100)
    scheduler.finish(last)
    assert scheduler.positions() == {T[0]: 3}
    assert scheduler.idle


def test_a_partition_with_much_open_work_is_full_and_others_are_not() -> None:
    scheduler = Scheduler(ordering="partition", concurrency=1, max_buffered=2)
    scheduler.add([record(0, 0), record(0, 1), record(1, 0)])
    assert scheduler.full(T[0])
    assert not scheduler.full(T[1])
    [job] = scheduler.take(0)
    scheduler.finish(job)
    assert not scheduler.full(T[0])


def test_a_batch_holds_records_of_one_partition_that_follow_each_other() -> None:
    scheduler = Scheduler(ordering="partition", concurrency=2, batch=2)
    scheduler.add([record(0, 0), record(1, 0), record(0, 1), record(0, 2)])
    first, second = scheduler.take(0)
    assert [each.offset for each in first.records] == [0, 1]
    assert [each.partition for each in second.records] == [1]


def test_records_that_have_not_begun_are_dropped_when_a_partition_stops() -> None:
    scheduler = Scheduler(ordering="none", concurrency=1)
    scheduler.add([record(0, 0), record(0, 1)])
    [job] = scheduler.take(0)
    scheduler.stop([T[0]])
    assert scheduler.busy([T[0]])
    scheduler.finish(job)
    assert not scheduler.busy([T[0]])
    assert list(scheduler.take(0)) == []
    assert scheduler.positions() == {T[0]: 1}, (
        "what was finished is committed, what was not is another's"
    )


def test_records_without_order_are_handled_at_once_and_in_batches() -> None:
    cases: tuple[tuple[Ordering, bytes | None], ...] = (("none", b"a"), ("key", None))
    for ordering, key in cases:
        scheduler = Scheduler(ordering=ordering, concurrency=2, batch=2)
        scheduler.add([record(0, offset, key) for offset in range(5)])
        first, second = scheduler.take(0)
        assert [[each.offset for each in job.records] for job in (first, second)] == [
            [0, 1],
            [2, 3],
        ]
        scheduler.finish(second)
        assert scheduler.positions() == {T[0]: 0}
        scheduler.finish(first)
        assert scheduler.positions() == {T[0]: 4}


@pytest.mark.parametrize("ordering", ["partition", "none"])
def test_the_records_of_a_failed_batch_are_handled_one_by_one_and_before_later_ones(
    ordering,
) -> None:
    scheduler = Scheduler(ordering=ordering, concurrency=1, batch=3)
    scheduler.add([record(0, offset) for offset in range(5)])
    [batch] = scheduler.take(0)
    batch.attempt = 4
    scheduler.split(batch)
    seen = []
    while not scheduler.idle:
        [job] = scheduler.take(0)
        seen.append(([each.offset for each in job.records], job.attempt))
        scheduler.finish(job)
    assert seen == [([0], 4), ([1], 4), ([2], 4), ([3, 4], 1)]


def test_a_record_that_is_not_handled_here_moves_the_position() -> None:
    scheduler = Scheduler(ordering="partition", concurrency=1)
    scheduler.skip(record(0, 6))
    assert scheduler.positions() == {T[0]: 7}
    scheduler.add([record(0, 7)])
    scheduler.skip(record(0, 8))
    assert scheduler.positions() == {T[0]: 7}
