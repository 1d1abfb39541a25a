"""The core of a worker alone, with random records, outcomes, commits, revocations and times; its actions are checked.

No event loop runs. `Driver` performs the core's actions as a worker does. The log and the group are lists.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.letter_headers import RecordOrigin, retry_headers, retry_topic
from headrace.errors import (
    ApiError,
    ErrorCode,
    FatalTransactionError,
    HeadraceError,
    TransportError,
)
from headrace.types import TopicPartition
from headrace.workers.core.delivery import MODES, Delivery
from headrace.workers.core.origins import Origins
from headrace.workers.core.revocation import (
    COMMIT_AGAIN_S,
    AwaitHandlers,
    CancelHandlers,
    Commit,
    CommitAgain,
    Forget,
    Released,
    RevocationAction,
)
from headrace.workers.core.scheduler import Job, Scheduler
from headrace.workers.core.worker_core import (
    Pause,
    Resume,
    Seek,
    SourceAction,
    WorkerCore,
    offsets_after,
)
from tests.effort import examples

GROUP: Final = "billing"
PLAIN: Final = [TopicPartition("orders", number) for number in range(2)]
WAITING: Final = TopicPartition(retry_topic("orders", 1), 0)
DRAIN_S: Final = 3.0
COMMIT_S: Final = 1.0
MAX_BUFFERED: Final = 6
DELIVERIES: Final[list[Delivery]] = ["at_least_once", "at_most_once", "exactly_once"]


class Driver:
    """A worker without I/O. It performs the core's actions, and checks their invariants."""

    def __init__(self, seed: int, delivery: Delivery) -> None:
        self.random = random.Random(seed)
        self.commits_first = delivery == "at_most_once"
        self.is_transactional = delivery == "exactly_once"
        self.kept: dict[TopicPartition, list[int]] = {}
        """The offsets of finished jobs that wait for their transaction."""
        self.core = WorkerCore(
            MODES[delivery],
            Scheduler(ordering="key", concurrency=3, max_buffered=MAX_BUFFERED),
            Origins(GROUP, ["orders"], {WAITING.topic: "orders"}, [1.0]),
            max_buffered=MAX_BUFFERED,
            waiting_calls=self.waiting_calls if self.is_transactional else None,
        )
        self.now_ms = 1_000_000
        self.log: dict[TopicPartition, list[ConsumerRecord]] = {
            name: [] for name in (*PLAIN, WAITING)
        }
        self.committed = dict.fromkeys(self.log, 0)
        self.positions: dict[TopicPartition, int | None] = dict.fromkeys(self.log, 0)
        """The read position of each assigned partition."""
        self.paused: set[TopicPartition] = set()
        self.running: list[Job] = []
        self.handled: Counter[tuple[TopicPartition, int]] = Counter()
        self.finished: set[tuple[TopicPartition, int]] = set()

    def waiting_calls(self, name: TopicPartition) -> int:
        return len(self.kept.get(name, ()))

    # The log and the group

    def write(self) -> None:
        name = self.random.choice(list(self.log))
        records = self.log[name]
        headers: tuple[tuple[str, bytes | None], ...] = ()
        offset = len(records)
        if name == WAITING:
            due_ms = self.now_ms + self.random.choice([-500, 0, 700, 1_500])
            origin = RecordOrigin("orders", 0, offset, self.now_ms)
            headers = retry_headers(_record(name, offset, self.now_ms), origin, GROUP, 2, due_ms)
        elif self.random.random() < 0.2:
            headers = (("headrace-only-group", b"shipping"),)
        records.append(_record(name, offset, self.now_ms)._replace(headers=headers))

    def perform(self, actions: list[SourceAction]) -> None:
        for action in actions:
            assert action.topic_partition in self.positions, "actions concern assigned partitions"
            match action:
                case Pause(name):
                    assert name not in self.paused or name in self.core.full
                    self.paused.add(name)
                case Resume(name):
                    self.paused.discard(name)
                case Seek(name, offset):
                    waits = name == WAITING and self.commits_first
                    assert waits or offset >= self.committed[name], "committed records stay behind"
                    self.positions[name] = offset

    def poll(self) -> None:
        limit = 3 if self.commits_first else 5
        records: list[ConsumerRecord] = []
        for name in [name for name in self.positions if name not in self.paused]:
            at = self.positions[name] or 0
            some = self.log[name][at : at + limit - len(records)]
            records += some
            self.positions[name] = at + len(some)
        if self.commits_first and records:
            if self.random.random() < 0.3:
                self.perform(self.core.read_again(records, self.positions))
                records = []
            self.committed.update(offsets_after(records))
        self.perform(self.core.on_records(records, self.now_ms).actions)

    def assign(self) -> None:
        """Assign a released partition again, at its committed offset."""
        missing = [name for name in self.log if name not in self.positions]
        if missing:
            name = self.random.choice(missing)
            self.positions[name] = self.committed[name]
            # In reality another member may have processed records since; this model has no other member.

    # Jobs

    def start(self) -> None:
        for job in self.core.scheduler.take(self.now_ms):
            self.running.append(job)
            for record in job.records:
                self.check_start(record)

    def check_start(self, record: ConsumerRecord) -> None:
        name = TopicPartition(record.topic, record.partition)
        assert name in self.positions, "a handler begins only in assigned partitions"
        assert ("headrace-only-group", b"shipping") not in record.headers
        if name == WAITING:
            origins = Origins(GROUP, ["orders"], {WAITING.topic: "orders"}, [1.0])
            assert origins.due_ms(record, self.now_ms) <= self.now_ms, "not before it is due"
        self.handled[name, record.offset] += 1
        if self.commits_first:
            assert record.offset < self.committed[name], "its offset is committed before"
            assert self.handled[name, record.offset] == 1, "no record is handled twice"

    def end_one(self) -> None:
        if not self.running:
            return
        job = self.running.pop(self.random.randrange(len(self.running)))
        name = job.topic_partition
        if self.random.random() < 0.25 and not self.commits_first:
            job.error = None
            self.core.scheduler.retry(job, self.now_ms + self.random.randrange(800))
        else:
            if self.core.scheduler.is_current(job):
                self.finished.update((name, record.offset) for record in job.records)
                if self.is_transactional:
                    self.kept.setdefault(name, []).append(job.records[-1].offset)
            self.core.scheduler.finish(job)
        if name in self.core.full:
            self.perform(self.core.make_room(name))

    def pass_time(self) -> None:
        due_ms = self.core.due_ms()
        self.now_ms += 1 if due_ms is None else max(1, due_ms - self.now_ms)
        self.perform(self.core.on_time(self.now_ms))

    # Commits

    def commit(self, partitions: list[TopicPartition] | None = None) -> HeadraceError | None:
        if self.commits_first:
            return None
        wanted = self.core.to_commit(partitions, self.positions)
        error = self.random.choice([None, None, None, *ERRORS])
        if error is not None and wanted:
            return error
        for name, at in wanted.items():
            assert at >= self.committed[name], "a committed offset does not go back"
            for record in self.log[name][:at]:
                for_others = ("headrace-only-group", b"shipping") in record.headers
                assert for_others or (name, record.offset) in self.finished, (
                    "no committed offset lies behind an unfinished record"
                )
            self.committed[name] = at
        if self.is_transactional:
            for name, at in wanted.items():
                self.kept[name] = [each for each in self.kept.get(name, []) if each >= at]
            self.perform(self.core.on_transaction(wanted, self.positions))
        else:
            self.core.on_committed(wanted)
        return None

    # Revocations

    def revoke(self) -> None:
        partitions = [name for name in self.positions if self.random.random() < 0.5]
        run = RevocationRun(self, partitions)
        while not isinstance(step := run.next(), Released):
            run.perform(step)
        run.check(step)

    def cancel(self, partitions: list[TopicPartition], *, late: bool) -> None:
        cancelled = [job for job in self.running if job.topic_partition in partitions]
        assert late or not cancelled, "before the bound a revocation waits for handlers"
        for job in cancelled:
            job.let_go = True
            self.core.scheduler.abandon(job)
        self.running = [job for job in self.running if job not in cancelled]

    def forget(self, partitions: list[TopicPartition]) -> None:
        self.core.forget(partitions)
        for name in partitions:
            self.positions.pop(name, None)
            self.paused.discard(name)
            self.kept.pop(name, None)
            at = self.committed[name]
            self.finished = {each for each in self.finished if each[0] != name or each[1] < at}

    def lose(self) -> None:
        """Lose partitions to another member: their handlers are cancelled, and nothing is committed."""
        if self.random.random() < 0.7:
            return
        partitions = [name for name in self.positions if self.random.random() < 0.5]
        self.core.lose(partitions)
        self.cancel(partitions, late=True)
        self.forget(partitions)

    # Checks

    def step(self) -> None:
        choices: list[Callable[[], object]] = [
            self.write,
            self.write,
            self.poll,
            self.poll,
            self.start,
            self.start,
            self.end_one,
            self.end_one,
            self.pass_time,
            self.commit,
            self.assign,
        ]
        if self.random.random() < 0.3:
            choices += [self.revoke, self.lose]
        self.random.choice(choices)()
        self.check()

    def check(self) -> None:
        core = self.core
        assert self.paused == core.full | set(core.held), "the source pauses what the core pauses"
        for state in (core.full, core.held, core.committed, core.scheduler.partitions):
            assert set(state) <= set(self.positions), "a released partition is forgotten"
        due_ms = core.due_ms()
        if core.held:
            assert due_ms is not None
            assert due_ms <= min(core.held.values()), "a held partition is resumed in time"

    def settle(self) -> None:
        """Finish all work, and check that all records are processed and committed."""
        for name in self.log:
            self.positions.setdefault(name, self.committed[name])
        for _ in range(10_000):
            ends = {name: len(records) for name, records in self.log.items()}
            if self.committed == ends and self.core.scheduler.idle and not self.core.held:
                return
            self.poll()
            self.start()
            self.end_one()
            self.commit()
            self.pass_time()
            self.check()
        pytest.fail(f"work is stuck: {self.committed}")


class RevocationRun:
    """One revocation: it performs the steps, and checks their order, time limits and result."""

    def __init__(self, driver: Driver, partitions: list[TopicPartition]) -> None:
        self.driver = driver
        self.partitions = partitions
        self.now_s = driver.now_ms / 1000
        self.end_s = self.now_s + DRAIN_S
        self.is_ours = True
        self.error: HeadraceError | None = None
        self.commit_failed_s = 0.0
        self.steps: list[type] = []
        self.revocation = driver.core.revoke(
            partitions, self.now_s, drain_timeout_s=DRAIN_S, commit_timeout_s=COMMIT_S
        )

    def next(self) -> RevocationAction | Released:
        step = self.revocation.next(self.now_s, is_ours=self.is_ours)
        self.steps.append(type(step))
        return step

    def perform(self, step: RevocationAction) -> None:
        driver = self.driver
        match step:
            case AwaitHandlers(timeout_s):
                self.wait(timeout_s)
            case CancelHandlers():
                late = self.now_s >= self.end_s or not self.is_ours
                driver.cancel(self.partitions, late=late)
            case Commit():
                self.commit_failed_s = self.now_s
                self.commit()
            case CommitAgain(pause_s, deadline_s):
                self.commit_again(pause_s, deadline_s)
            case Forget():
                driver.forget(self.partitions)

    def wait(self, timeout_s: float) -> None:
        driver = self.driver
        assert 0 < timeout_s <= self.end_s - self.now_s, "handlers get no more than the bound"
        self.now_s += timeout_s * driver.random.choice([0.1, 1.0])
        driver.now_ms = round(self.now_s * 1000)
        driver.start()  # records that are committed may still begin
        if driver.random.random() < 0.5:
            driver.end_one()
        self.is_ours = driver.random.random() < 0.98

    def commit(self) -> None:
        self.error = self.driver.commit(self.partitions)
        self.revocation.on_commit(self.error, self.now_s)

    def commit_again(self, pause_s: float, deadline_s: float) -> None:
        assert self.driver.is_transactional, "only a transaction is repeated"
        assert pause_s == COMMIT_AGAIN_S
        assert deadline_s <= self.commit_failed_s + COMMIT_S
        self.now_s += pause_s
        if self.now_s >= deadline_s:
            self.revocation.on_commit_timeout()
        else:
            self.commit()

    def check(self, released: Released) -> None:
        order = [AwaitHandlers, CancelHandlers, Commit, CommitAgain, Forget, Released]
        at = [order.index(step) for step in self.steps]
        assert at == sorted(at), "the steps have one order"
        for once in (CancelHandlers, Forget, Released):
            assert self.steps.count(once) == 1
        assert self.steps.count(Commit) == (not self.driver.commits_first)
        if released.error is not None:
            assert released.error is self.error, "the error is that of the last commit"
            assert released.error is not NOT_A_MEMBER, "a commit of a former member may fail"


NOT_A_MEMBER: Final = ApiError.for_code(ErrorCode.UNKNOWN_MEMBER_ID, "")
ERRORS: Final[list[HeadraceError]] = [
    NOT_A_MEMBER,
    TransportError("no broker answers"),
    FatalTransactionError("fenced"),
]


def _record(name: TopicPartition, offset: int, now_ms: int) -> ConsumerRecord:
    key = [None, b"a", b"b"][offset % 3]
    return ConsumerRecord(name.topic, name.partition, offset, now_ms, key, b"v", (), 0)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(DELIVERIES))
def test_offsets_pauses_and_revocations_are_right_in_random_runs(
    seed: int, delivery: Delivery
) -> None:
    driver = Driver(seed, delivery)
    for _ in range(150):
        driver.step()
    driver.settle()


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_worker_that_stops_begins_no_record_that_is_not_committed(delivery: Delivery) -> None:
    core = Driver(0, delivery).core
    core.on_records([_record(PLAIN[0], 0, 0)], 0)
    core.stop()
    core.on_records([_record(PLAIN[1], 0, 0)], 0)
    begun = [job.topic_partition for job in core.scheduler.take(0)]
    assert begun == (PLAIN if delivery == "at_most_once" else [])


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_seed_determines_its_run(delivery: Delivery) -> None:
    runs = []
    for _ in range(2):
        driver = Driver(7, delivery)
        for _ in range(200):
            driver.step()
        runs.append((driver.committed, driver.handled, driver.now_ms, driver.paused))
    assert runs[0] == runs[1]


def test_only_a_transaction_is_repeated_and_only_until_its_time_is_over() -> None:
    for delivery in DELIVERIES:
        driver = Driver(0, delivery)
        revocation = driver.core.revoke(PLAIN, 0.0, drain_timeout_s=1.0, commit_timeout_s=1.0)
        assert revocation.next(0.0, is_ours=True) == CancelHandlers()
        if driver.commits_first:
            assert revocation.next(0.0, is_ours=True) == Forget()
            continue
        assert revocation.next(0.0, is_ours=True) == Commit()
        error = TransportError("no broker answers")
        revocation.on_commit(error, 0.5)
        if driver.is_transactional:
            assert revocation.next(0.5, is_ours=True) == CommitAgain(COMMIT_AGAIN_S, 1.5)
            revocation.on_commit(error, 1.4)
            assert revocation.next(1.4, is_ours=True) == CommitAgain(COMMIT_AGAIN_S, 1.5)
            revocation.on_commit(error, 1.6)
        assert revocation.next(1.6, is_ours=True) == Forget()
        assert revocation.next(1.6, is_ours=True) == Released(error)
