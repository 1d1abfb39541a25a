"""Four workers between two topics. A seed determines the faults of workers and broker; the output must be exact.

A worker consumes from `input`, produces to the same partition of `output` and commits its position, all in one
transaction. Processes are killed, stopped until their sessions and transactions are over, and woken up again as
zombies, some of them beside a successor with their transactional id.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.chaos.feeding import FAST, INPUT, OUTPUT, PARTITIONS, Feeder, Watcher
from tests.chaos.output_check import OutputCheck
from tests.fixtures.processes import ServerProcess

PROGRAMS = Path(__file__).with_name("programs")
WORKERS = 4
MIXED = ("confluent", "headrace", "app", "confluent")
"""Clients of the workers if the client is "mixed"."""
GROUP = "pipeline"
SESSION_MS = 2_000
TRANSACTION_MS = 3_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "300",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.retention.ms": "-1",
    "log.segment.bytes": "65536",  # transactions go over several segments
}
PATIENCE_S = 45
CALM_S = (0.1, 0.5, 1, 2, 4)
STOPPED_S = (0.3, 1.5, SESSION_MS / 1000 + 1, TRANSACTION_MS / 1000 + 1.5)
ENDS = {0: "left", -signal.SIGTERM: "left", 3: "fenced", 4: "astray", 5: "stopped"}
"""Exit codes with which workers may end: stopped (before or after they listen to the signal), fenced, with a lost
position (librdkafka only), or unable to commit what they must hand over."""


@dataclass
class Incarnation:
    """One process of a worker."""

    name: str
    process: subprocess.Popen[bytes]
    wakes_at: float = 0.0
    """The time at which a stopped process continues, in seconds of the monotonic clock; 0 if it is not stopped."""


@dataclass
class Slot:
    """One worker: its transactional id, and its present process."""

    number: int
    current: Incarnation | None = None
    due_at: float = 0.0
    """The time at which the next process starts, in seconds of the monotonic clock."""
    born: int = 0


@dataclass
class Pipeline:
    """One run: a seed, and client and group protocol of the workers."""

    directory: Path
    seed: int
    client: str
    protocol: str
    fault: str = ""
    """The fault that workers with Headrace's clients commit on purpose; None for none."""
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.journals = self.directory / "history"
        self.journals.mkdir(parents=True)
        settings = [f"--config={key}={value}" for key, value in SETTINGS.items()]
        self.server = ServerProcess(
            self.directory / "data",
            log_path=self.directory / "server.log",
            arguments=["--log-format", "json", *settings],
        )
        self.slots = [Slot(number) for number in range(WORKERS)]
        self.zombies: list[Incarnation] = []
        self.assignor = self.random.choice(["range", "roundrobin", "cooperative-sticky"])
        self.shares_id = self.random.random() < 0.5
        """Whether the next process of an app's worker has the transactional id of the one before."""
        self._broker_due_at = 0.0
        self._broker_wakes_at = 0.0
        self._tick = threading.Event()

    def run(self, seconds: float) -> OutputCheck:
        """Run for the given time, then end all faults, and check the output."""
        try:
            self._begin()
            self._live(time.monotonic() + seconds)
            self._heal()
            return self._end()
        finally:
            for process in [*self.zombies, *(s.current for s in self.slots if s.current)]:
                process.process.kill()
                process.process.wait()
            for each in self._background:
                each.ends.set()
            for each in self._background:
                each.stop(PATIENCE_S)
            self.server.kill()

    _last = ""
    """The progress at the last timeout, for messages."""
    _background: tuple[Feeder | Watcher, ...] = ()

    def _begin(self) -> None:
        self.server.start()
        self.admin = AdminClient({"bootstrap.servers": self.server.bootstrap, **FAST})
        topics = [NewTopic(name, PARTITIONS, 1) for name in (INPUT, OUTPUT)]
        for created in self.admin.create_topics(topics).values():
            created.result()
        # Every partition has a committed offset, so no worker begins at the start because an offset was lost.
        places = [TopicPartition(INPUT, number, 0) for number in range(PARTITIONS)]
        beginning = [ConsumerGroupTopicPartitions(GROUP, places)]
        for altered in self.admin.alter_consumer_group_offsets(beginning).values():
            altered.result()
        bootstrap = self.server.bootstrap
        self.feeder = Feeder(
            bootstrap,
            self.journals / "feeder.jsonl",
            self.seed,
            transactional=self.random.random() < 0.7,
        )
        watcher = Watcher(bootstrap, self.journals / "watcher.jsonl", OUTPUT)
        self._background = (self.feeder, watcher)
        for each in self._background:
            each.start()

    # What happens

    def _live(self, end: float) -> None:
        events: dict[Callable[[], None], int] = {
            self.kill_worker: self.random.choice([2, 4]),
            self.stop_worker: self.random.choice([0, 2, 4]),
            self.end_worker: self.random.choice([0, 1]),
            self.kill_broker: self.random.choice([1, 2]),
            self.stop_broker: self.random.choice([0, 1]),
            self.restart_broker: self.random.choice([0, 1]),
        }
        next_event = time.monotonic() + 2
        while (now := time.monotonic()) < end:
            self._turn(now)
            if now >= next_event:
                self.random.choices(list(events), list(events.values()))[0]()
                next_event = time.monotonic() + self.random.choice(CALM_S)
            self._tick.wait(0.03)

    def _turn(self, now: float) -> None:
        """Start and wake the workers that are due, and start ended workers again."""
        if self._broker_due_at and now >= self._broker_due_at:
            self._broker_due_at = 0.0
            self.server.start()
        if self._broker_wakes_at and now >= self._broker_wakes_at:
            self._broker_wakes_at = 0.0
            self.server.signal(signal.SIGCONT)
        for slot in self.slots:
            if slot.current is not None and slot.current.process.poll() is not None:
                self._gone(slot.current)
                slot.current, slot.due_at = None, now
            if slot.current is None and now >= slot.due_at:
                self._start_worker(slot)
        running = [slot.current for slot in self.slots if slot.current is not None]
        for one in [*running, *self.zombies]:
            if one.wakes_at and now >= one.wakes_at:
                one.wakes_at = 0.0
                one.process.send_signal(signal.SIGCONT)
        for zombie in [one for one in self.zombies if one.process.poll() is not None]:
            self.zombies.remove(zombie)
            self._gone(zombie)

    def _gone(self, one: Incarnation) -> None:
        """Count the exit code of a process that has ended by itself. Only some codes are permitted."""
        code = one.process.returncode
        said = (self.directory / f"{one.name}.err").read_text()
        hung = "Timeout (" in said  # faulthandler's
        assert code in ENDS or hung, f"{one.name} died of {code}: {said[-2000:]}"
        self.counts[ENDS.get(code, "hung")] += 1

    def _start_worker(self, slot: Slot) -> None:
        name = f"w{slot.number}.{slot.born}"
        slot.born += 1
        settings = {
            "name": name,
            "journal": str(self.journals / f"{name}.jsonl"),
            "bootstrap": self.server.bootstrap,
            "group": GROUP,
            "input": INPUT,
            "output": OUTPUT,
            "transactional_id": f"w{slot.number}",
            "shares_id": self.shares_id,
            "fault": self.fault,
            "protocol": self._protocol_of_next(),
            "assignor": self.assignor,
            "session_timeout_ms": SESSION_MS,
            "transaction_timeout_ms": TRANSACTION_MS,
            "patience_s": 3 * TRANSACTION_MS / 1000,
        }
        client = MIXED[slot.number] if self.client == "mixed" else self.client
        program = PROGRAMS / f"{client}_worker.py"
        with (self.directory / f"{name}.err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, str(program), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )
        slot.current = Incarnation(name, process)
        self.counts["started"] += 1

    def _protocol_of_next(self) -> str:
        """Members may come under either protocol where the group is to move between them."""
        either = self.protocol == "either"
        return self.random.choice(["classic", "consumer"]) if either else self.protocol

    def _awake(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.current and not slot.current.wakes_at]

    def kill_worker(self) -> None:
        for slot in self.random.sample(able := self._awake(), min(len(able), 1)):
            assert slot.current is not None
            slot.current.process.kill()
            slot.current.process.wait()
            slot.current, slot.due_at = None, time.monotonic() + self.random.choice([0, 0, 0.5, 3])
            self.counts["workers killed"] += 1

    def stop_worker(self) -> None:
        """Stop a process for a while. It may continue as a zombie beside a process with its transactional id."""
        for slot in self.random.sample(able := self._awake(), min(len(able), 1)):
            one = slot.current
            assert one is not None
            one.process.send_signal(signal.SIGSTOP)
            one.wakes_at = time.monotonic() + self.random.choice(STOPPED_S)
            self.counts["workers stopped"] += 1
            if self.random.random() < 0.4:
                self.zombies.append(one)
                slot.current, slot.due_at = None, time.monotonic() + self.random.choice([0, 1])
                self.counts["zombies"] += 1

    def end_worker(self) -> None:
        for slot in self.random.sample(able := self._awake(), min(len(able), 1)):
            assert slot.current is not None
            slot.current.process.terminate()
            self.counts["workers ended"] += 1

    def _broker_is_well(self) -> bool:
        return not self._broker_due_at and not self._broker_wakes_at

    def kill_broker(self) -> None:
        if self._broker_is_well():
            self.server.kill()
            self._broker_due_at = time.monotonic() + self.random.choice([0, 0, 0.5, 2])
            self.counts["broker killed"] += 1

    def stop_broker(self) -> None:
        if self._broker_is_well():
            self.server.signal(signal.SIGSTOP)
            self._broker_wakes_at = time.monotonic() + self.random.uniform(0.2, 2.5)
            self.counts["broker stopped"] += 1

    def restart_broker(self) -> None:
        if self._broker_is_well():
            self.server.restart()
            self.counts["broker restarted"] += 1

    # The end

    def _heal(self) -> None:
        """No more faults: everything that went in must come out, and every transaction must end."""
        for one in self.zombies:
            one.process.kill()
            one.process.wait()
        self.zombies.clear()
        far = time.monotonic() + 3600
        self._turn(far)
        began = time.monotonic()
        self.feeder.stop(PATIENCE_S)
        assert self.feeder.trouble is None, self.feeder.trouble
        self.output_check = OutputCheck(self.server.bootstrap, self.journals, self.feeder.sent)
        self._until("the input is committed", self._is_committed)
        for slot in self.slots:
            assert slot.current is not None
            slot.current.process.terminate()
        for slot in self.slots:
            assert slot.current is not None
            slot.current.process.wait(PATIENCE_S)
            slot.current = None
        self._until("no transaction is open", self._is_stable)
        self.output_check.drained_in_s = time.monotonic() - began

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not in {PATIENCE_S} s; {self._last}"
            self._turn(time.monotonic())
            self._tick.wait(0.1)

    def _is_committed(self) -> bool:
        found = self._positions()  # may lie behind a marker that follows the last record
        missing = {
            number: (found.get(number), end)
            for number, end in self.output_check.wanted_positions().items()
            if found.get(number, -1) < end
        }
        self._last = f"committed and end of partitions: {missing}"
        return not missing

    def _positions(self) -> dict[int, int]:
        places = [TopicPartition(INPUT, number) for number in range(PARTITIONS)]
        ask = [ConsumerGroupTopicPartitions(GROUP, places)]
        (asked,) = self.admin.list_consumer_group_offsets(ask, require_stable=True).values()
        try:
            found = asked.result(PATIENCE_S).topic_partitions
        except KafkaException as error:  # an open transaction, or a coordinator that loads
            if not error.args[0].retriable():
                raise
            return {}
        return {place.partition: place.offset for place in found if place.offset >= 0}

    def _is_stable(self) -> bool:
        """Whether the last stable offset is the end, in both topics."""
        places = [TopicPartition(name, n) for name in (INPUT, OUTPUT) for n in range(PARTITIONS)]
        question = {place: OffsetSpec.latest() for place in places}
        ends = []
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            answer = self.admin.list_offsets(question, isolation_level=isolation)
            ends.append([answer[place].result(PATIENCE_S).offset for place in places])
        self._last = f"last stable offsets {ends[0]}, ends {ends[1]}"
        return ends[0] == ends[1]

    def _end(self) -> OutputCheck:
        watcher = self._background[1]
        self.output_check.check_records()
        watcher.stop(PATIENCE_S)
        assert watcher.trouble is None, watcher.trouble
        assert self.server.stop() == 0
        self.output_check.check_history()
        self.output_check.check_log(self.server.log)
        return self.output_check
