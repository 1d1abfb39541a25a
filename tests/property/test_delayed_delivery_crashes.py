"""Scheduled records with power cuts and kills at any operation: none is lost, duplicated, early or out of order.

A producer repeats each batch until it has a response; an idempotent producer does so in sequence. A reader follows the
partition, and sometimes deletes the records that it has read. At the end, when all records are due, each record of an
idempotent producer was read once, at one offset. Each other record was read at most as often as it was sent, and once
if the first attempt was acknowledged.

Two runs in five have durability `os` or `interval`. There a power cut may lose acknowledged records of the partition,
but no scheduled records. These runs count the records in the partition, because a lost record may be read twice.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.broker import scheduled_records
from headrace.broker.configs import log_configs
from headrace.core.scheduled import needed, schedule
from headrace.core.scheduled.due_queue import DueQueue
from headrace.core.scheduled.schedule import Schedule
from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.records.batch import iterate_headers
from headrace.records.builder import build_batch
from headrace.records.reader import Record, read_records
from tests.fixtures.broker_harness import (
    START_MS,
    BrokerHarness,
    fetch_request,
    produce_request,
)
from tests.fixtures.crash_files import CrashFileSystem, PowerCut

pytestmark = pytest.mark.slow  # not in `make check`

TOPIC = "later"
LONGEST_MS = 400_000
SEEDS = int(os.environ.get("HEADRACE_DELAY_SEEDS", "60"))
WEAK = {3: "os", 4: "interval:60000"}
"""The durability of the topic by the seed modulo five; the default, `fsync`, for other values."""


@dataclass
class Sent:
    """A batch of the producer: its values, and the earliest delivery time of each record."""

    entries: list[tuple[bytes, tuple[tuple[str, bytes], ...]]]
    due_ms: dict[bytes, int]
    identity: dict[str, Any]
    attempts: int = 0
    answered: bool = False
    in_flight: bool = False
    """Whether the producer sent the batch once and does not wait for the response. It has no scheduled records."""


@dataclass
class Harness:
    seed: int
    options: dict[str, Any]
    sent: list[Sent] = field(default_factory=list)
    seen: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """The offsets and timestamps at which each value was read."""
    position: int = 0
    sequence: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.files = CrashFileSystem()
        self.metadata = MemoryMetadataStore()
        self.now_ms = START_MS
        self.deletes = self.seed % 3 == 0
        """Whether the reader deletes records. Then no producer is idempotent: a power cut may lose the producer state
        of deleted batches."""
        self.durability = WEAK.get(self.seed % 5, "fsync")
        self.deletes &= self.durability == "fsync"
        self.harness: BrokerHarness | None = None

    def start(self) -> None:
        self.harness = None
        self.harness = BrokerHarness(
            files=self.files, metadata=self.metadata, now_ms=self.now_ms, **self.options
        )
        broker = self.harness.broker
        assert not self.harness.journal.events("error"), self.harness.journal.lines
        if broker.services.topics.get(TOPIC) is None:
            self.harness.create_topic(
                TOPIC,
                headrace_delay_enable="true",
                segment_bytes="900",
                headrace_durability=self.durability,
            )
        if self.durability != "fsync":
            self.seen, self.position = {}, 0  # the power cut may have lost records that were read
        self.read()

    @property
    def broker(self) -> Any:
        assert self.harness is not None
        return self.harness.broker

    def work(self, steps: int) -> None:
        for _ in range(steps):
            action = self.chance.choices(
                [
                    self.produce,
                    self.produce_without_waiting,
                    self.sync,
                    self.pass_time,
                    self.read,
                    self.delete,
                    self.restart,
                ],
                weights=[40, 10, 25, 25, 10, 4, 2],
            )[0]
            action()

    def produce(self) -> None:
        unanswered = [sent for sent in self.sent if not sent.answered]
        if unanswered:
            self.attempt(unanswered[0])
            return
        entries: list[tuple[bytes, tuple[tuple[str, bytes], ...]]] = []
        due_ms: dict[bytes, int] = {}
        for number in range(self.chance.randint(1, 4)):
            value = b"%d.%d" % (len(self.sent), number)
            delay_ms = self.chance.choice([0, 1, 7, 100, 100, 90_000, LONGEST_MS])
            kind = self.chance.randrange(4)
            due_ms[value] = 0 if kind == 0 else self.now_ms + delay_ms
            name, number_ms = (
                ("headrace.delay-ms", delay_ms)
                if kind == 1
                else ("headrace.deliver-at-ms", self.now_ms + delay_ms)
            )
            entries.append((value, ((name, b"%d" % number_ms),) if kind else ()))
        identity: dict[str, Any] = {}
        if self.durability == "fsync" and not self.deletes and self.chance.random() < 0.7:
            identity = {"producer_id": 5, "producer_epoch": 0, "base_sequence": self.sequence}
            self.sequence += len(entries)
        self.sent.append(Sent(entries, due_ms, identity))
        self.attempt(self.sent[-1])

    def produce_without_waiting(self) -> None:
        """Produce batches without waiting for responses: they are in the partition, and are not synced."""
        assert self.harness is not None
        for _ in range(self.chance.randint(1, 8)):
            value = b"%d.0" % len(self.sent)
            sent = Sent([(value, ())], {value: 0}, {}, attempts=1, answered=True, in_flight=True)
            self.sent.append(sent)
            self.harness.send(
                produce_request(TOPIC, 0, build_batch([(None, value, (), self.now_ms)]))
            )

    def attempt(self, sent: Sent) -> None:
        assert self.harness is not None
        sent.attempts += 1
        records = [(None, value, headers, self.now_ms) for value, headers in sent.entries]
        request = produce_request(TOPIC, 0, build_batch(records, **sent.identity))
        pending = self.harness.send(request)
        for _ in range(self.chance.randrange(4)):
            self.chance.choice([self.sync, self.pass_time])()
            if pending.done:
                break
        if pending.done:
            part = pending.response.responses[0].partition_responses[0]
            sent.answered = part.error_code == ErrorCode.NONE
            assert sent.answered or part.error_code == ErrorCode.REQUEST_TIMED_OUT, part

    def sync(self) -> None:
        assert self.harness is not None
        batch = self.broker.start_sync()
        if batch is not None:
            if self.chance.random() < 0.2:
                self.tick()  # while the sync runs
            tasks = list(batch.tasks)
            self.chance.shuffle(tasks)  # a server runs them in threads
            for task in tasks:
                task.run()
            self.broker.finish_sync(batch, None, self.now_ms)

    def tick(self) -> None:
        deadline_ms = self.broker.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.broker.tick(self.now_ms)

    def pass_time(self) -> None:
        assert self.harness is not None
        self.now_ms += self.chance.choice([0, 1, 5, 50, 70_000])
        self.harness.now_ms = self.now_ms
        for _ in range(self.chance.randint(1, 4)):
            self.tick()

    def read(self) -> None:
        assert self.harness is not None
        while True:
            part = self.harness.send(self.fetch()).response.responses[0].partitions[0]
            assert part.error_code == ErrorCode.NONE, part.error_code
            if not part.records:
                return
            data = bytes(part.records)
            for record in read_records(data):
                if record.offset >= self.position:
                    self.take(record)
            self.position = max(header.next_offset for _, header in iterate_headers(data))

    def fetch(self) -> Any:
        return fetch_request((TOPIC, 0, self.position), max_wait_ms=0)

    def take(self, record: Record) -> None:
        assert record.value is not None
        self.seen.setdefault(record.value, []).append((record.offset, record.timestamp))
        number = int(record.value.partition(b".")[0])
        assert self.now_ms >= self.sent[number].due_ms[record.value], "early"

    def delete(self) -> None:
        """Delete the records that were read."""
        self.read()
        if not self.deletes:
            return
        partition = self.broker.services.partitions.require(TOPIC, 0)
        self.broker.services.deletion.delete_records({partition: self.position}, self.now_ms)

    def restart(self) -> None:
        while self.broker.sync_due:
            self.sync()
        self.broker.close(self.now_ms)
        self.start()

    def finish(self) -> None:
        """Wait until the producer has all responses, and all records are due."""
        assert self.harness is not None
        for sent in self.sent:
            while not sent.answered:
                self.attempt(sent)
                self.sync()
        self.now_ms += LONGEST_MS + 1
        self.harness.now_ms = self.now_ms
        partition, deliveries = (
            self.broker.services.partitions.require(TOPIC, 0),
            self.broker.services.deliveries,
        )
        for _ in range(1000):
            self.now_ms += 1
            self.tick()
            self.sync()
            deadline_ms = deliveries.next_deadline_ms
            busy = deadline_ms is not None and deadline_ms <= self.now_ms + 10
            if not busy and not deliveries.pending(partition) and not self.broker.sync_due:
                break
        self.read()
        assert self.broker.services.deliveries.pending(partition) == 0

    def check(self) -> None:
        for sent in self.sent:
            for value, _ in sent.entries:
                times = len(self.seen.get(value, ()))
                at_once = not sent.due_ms[value]
                if sent.in_flight or (at_once and self.durability != "fsync"):
                    assert times <= sent.attempts, f"{value!r} came {times} times, {sent}"
                elif sent.identity or sent.attempts == 1:
                    assert times == 1, f"{value!r} came {times} times, {sent}"
                else:
                    assert 1 <= times <= sent.attempts, f"{value!r} came {times} times, {sent}"
        released = [
            (offset, timestamp)
            for value, reads in self.seen.items()
            for offset, timestamp in reads
            if self.sent[int(value.partition(b".")[0])].due_ms[value]
        ]
        due = [timestamp for _, timestamp in sorted(released)]
        assert due == sorted(due), "not in the order of due times"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rare events frequent, by small limits."""
    monkeypatch.setattr(scheduled_records, "DueQueue", functools.partial(DueQueue, limit=6))
    monkeypatch.setattr(log_configs, "SCHEDULE_SEGMENT_BYTES", 1500)
    monkeypatch.setattr(schedule, "RELEASE_RECORDS", 3)
    monkeypatch.setattr(schedule, "_LOAD_BYTES", 600)
    monkeypatch.setattr(needed, "_CHUNK_BITS", 2)


def live(seed: int) -> Harness:
    """Run a broker through power cuts and kills, also while it starts, until everything is due."""
    chance = random.Random(f"lives {seed}")
    world = Harness(seed, {"log_segment_bytes": 900, "num_partitions": 1})
    world.start()
    for life in range(4):
        world.files.fuse = world.files.operations + chance.randint(1, 260)
        try:
            if life:
                world.start()
            world.work(chance.randint(5, 120))
        except PowerCut:
            pass
        world.files.fuse = None
        if chance.random() < 0.6:
            world.files = world.files.after_power_cut(seed * 10 + life)
    for attempt in range(3):
        world.files.fuse = world.files.operations + chance.randint(1, 15)
        try:
            world.start()
        except PowerCut:
            if chance.random() < 0.6:
                world.files = world.files.after_power_cut(seed * 100 + attempt)
    world.files.fuse = None
    world.start()
    world.finish()
    world.check()
    return world


def test_each_scheduled_record_is_delivered_once_when_due_despite_power_cuts() -> None:
    released = 0
    for seed in range(SEEDS):
        try:
            released += len(live(seed).seen)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert released > SEEDS


def begin(seed: int) -> Harness:
    """Cut the power while a schedule is new, then end the broker several times between a release and its mark."""
    chance = random.Random(f"begins {seed}")
    world = Harness(seed, {"log_segment_bytes": 900, "num_partitions": 1})
    world.start()
    for _ in range(chance.randint(1, 3)):
        world.produce_without_waiting()
    world.produce()
    if chance.random() < 0.5:
        world.files.fuse = world.files.operations + chance.randint(1, 6)
        with contextlib.suppress(PowerCut):
            world.sync()
        world.files.fuse = None
    world.files = world.files.after_power_cut(seed)
    for life in range(chance.randint(1, 3)):
        world.start()
        world.now_ms += LONGEST_MS
        world.pass_time()
        if chance.random() < 0.7:
            world.sync()
        if chance.random() < 0.3:
            world.files = world.files.after_power_cut(seed * 10 + life)
    world.start()
    world.finish()
    world.check()
    return world


def test_a_schedule_that_begins_with_power_cuts_releases_each_record_once() -> None:
    for seed in range(SEEDS):
        try:
            begin(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# Each rule of the schedule is left out once, and the tests above find that.


def release_what_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    take_due = Schedule._take_due

    def careless(self: Schedule, now_ms: int) -> list[bytes]:
        high_watermark, self.log.high_watermark = self.log.high_watermark, self.log.log_end_offset
        try:
            return take_due(self, now_ms)
        finally:
            self.log.high_watermark = high_watermark

    monkeypatch.setattr(Schedule, "_take_due", careless)


def mark_what_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    end = property(lambda self: self.target.log_end_offset)
    monkeypatch.setattr(Schedule, "_target_committed", end)


def begin_above_what_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    load, end = Schedule.load, property(lambda self: self.target.log_end_offset)

    def careless(self: Schedule, now_ms: int) -> None:
        synced = Schedule._target_committed
        monkeypatch.setattr(Schedule, "_target_committed", end)
        try:
            load(self, now_ms)
        finally:
            monkeypatch.setattr(Schedule, "_target_committed", synced)

    monkeypatch.setattr(Schedule, "load", careless)


def delete_what_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "_keep", lambda _: None)


def forget_what_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "_find_releases", lambda *_: None)


def schedule_every_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Schedule.add

    def careless(self: Schedule, later: bytes, now_ms: int) -> int:
        known, self.log.producers._entries = self.log.producers._entries, {}
        try:
            return add(self, later, now_ms)
        finally:
            self.log.producers._entries = {**known, **self.log.producers._entries}

    monkeypatch.setattr(Schedule, "add", careless)


@pytest.mark.parametrize(
    ("fault", "first_seed", "history"),
    [
        (begin_above_what_is_synced, 0, begin),
        (release_what_is_not_synced, 10, live),
        (mark_what_is_not_synced, 37, live),
        (delete_what_is_not_marked, 9, live),
        (forget_what_is_not_marked, 0, live),
        (schedule_every_retry, 1, live),
    ],
)
def test_a_rule_that_is_left_out_is_found(
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
    first_seed: int,
    history: Callable[[int], Harness],
) -> None:
    fault(monkeypatch)
    for seed in range(first_seed, first_seed + 200):
        try:
            history(seed)
        except AssertionError:
            return
    pytest.fail("no run found the missing rule")


def script(world: Harness) -> None:
    """Schedule, release and mark twice, with a produce request while a release is not synced."""
    for _ in range(2):
        for _ in range(3):
            world.produce()
            world.sync()
        for step_ms in (1, 7, 100, 90_000):
            world.now_ms += step_ms
            assert world.harness is not None
            world.harness.now_ms = world.now_ms
            for _ in range(3):
                world.tick()
            world.produce()
            world.sync()
            world.tick()
            world.sync()
        world.delete()


def run_script(seed: int, fuse: int | None) -> tuple[Harness, int]:
    world = Harness(seed, {"log_segment_bytes": 900, "num_partitions": 1})
    world.start()
    begun = world.files.operations
    world.files.fuse = None if fuse is None else begun + fuse
    with contextlib.suppress(PowerCut):
        script(world)
    world.files.fuse = None
    return world, world.files.operations - begun


@pytest.mark.parametrize("seed", range(4, 5 + SEEDS // 500))
def test_a_power_cut_or_a_kill_at_each_single_operation(seed: int) -> None:
    _, operations = run_script(seed, None)
    assert operations > 60
    for fuse in range(1, operations + 1):
        for cut in (True, False):
            world, _ = run_script(seed, fuse)
            if cut:
                world.files = world.files.after_power_cut(fuse)
            world.start()
            world.finish()
            world.check()
