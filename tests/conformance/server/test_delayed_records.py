"""Many scheduled records while the server is killed: each is delivered once, when it is due, in order.

HEADRACE_DELAYED_RECORDS is their number (50,000; `make delay` takes a million). The server is killed while they are
scheduled, and again while they are delivered. The measurements are printed and kept in .cache/delay/results.txt.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.records.batch import iterate_headers
from headrace.records.builder import build_batch
from headrace.records.reader import read_records
from tests.conformance.server.wire import WireClient
from tests.fixtures.processes import ServerProcess

RECORDS = int(os.environ.get("HEADRACE_DELAYED_RECORDS", "50000"))
RESULTS = Path(".cache/delay/results.txt")
TOPIC = "later"
PARTITIONS = 4
BATCH = 500
WINDOW = 5
BEFORE_A_KILL_MS = 1000
"""Records that are due less than this before a kill may be delivered after it, in milliseconds."""
CAUGHT_UP_MS = 500
"""Records that were due during an outage are delivered first.

The outage counts as over when all records older than this are delivered, in milliseconds.
"""
UNDISTURBED_SHARE = 0.1
"""The least part of the records that must be due outside of outages, so that their delay can be measured."""
SLACK_MS = 2
"""The largest difference between the clocks of two processes."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Plan:
    """The delivery times of the records, spread at random over a period."""

    per_partition: int
    lead_s: float
    spread_s: float
    due_ms: list[array[int]] = field(default_factory=list)
    start_ms: int = 0

    def begin(self, seed: int) -> None:
        chance = random.Random(seed)
        self.start_ms = now_ms() + int(self.lead_s * 1000)
        spread_ms = int(self.spread_s * 1000)
        self.due_ms = [
            array(
                "q",
                (self.start_ms + chance.randrange(spread_ms) for _ in range(self.per_partition)),
            )
            for _ in range(PARTITIONS)
        ]

    @property
    def end_ms(self) -> int:
        return self.start_ms + int(self.spread_s * 1000)


@dataclass
class Producer:
    """Schedules the records of one partition; after an outage it repeats requests that had no answer."""

    plan: Plan
    partition: int
    address: tuple[str, int]
    answered: Callable[[int], None]
    identity: tuple[int, int] = (-1, -1)
    next_number: int = 0
    unanswered: deque[bytes] = field(default_factory=deque)
    problem: str = ""

    def run(self) -> None:
        try:
            while not self.done:
                try:
                    with WireClient(self.address) as client:
                        self.send(client)
                except OSError:
                    time.sleep(0.05)  # until the server is back
        except Exception as error:
            self.problem = repr(error)
            raise

    @property
    def done(self) -> bool:
        return self.next_number == self.plan.per_partition and not self.unanswered

    def send(self, client: WireClient) -> None:
        if self.identity == (-1, -1):
            self.identity = client.init_producer_id()
        for batch in self.unanswered:
            client.send_batch(TOPIC, self.partition, batch)
        while not self.done:
            while len(self.unanswered) < WINDOW and self.next_number < self.plan.per_partition:
                self.unanswered.append(self.next_batch())
                client.send_batch(TOPIC, self.partition, self.unanswered[-1])
            _, response = client.receive()
            part = response.responses[0].partition_responses[0]
            assert part.error_code == 0, part
            self.unanswered.popleft()
            self.answered(BATCH)

    def next_batch(self) -> bytes:
        first = self.next_number
        self.next_number = min(first + BATCH, self.plan.per_partition)
        due_ms = self.plan.due_ms[self.partition]
        pad = b"." * 80
        return build_batch(
            [
                (
                    None,
                    b"%d %s" % (number, pad),
                    (("headrace.deliver-at-ms", b"%d" % due_ms[number]),),
                    self.plan.start_ms,
                )
                for number in range(first, self.next_number)
            ],
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=first,
        )


@dataclass
class Reader:
    """Reads all partitions as records come, and checks each."""

    plan: Plan
    address: tuple[str, int]
    positions: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    latest_ms: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    came: list[bytearray] = field(default_factory=list)
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    """The delivery time of each record, and the time at which it was read."""
    count: int = 0
    problem: str = ""

    def run(self) -> None:
        self.came = [bytearray(self.plan.per_partition) for _ in range(PARTITIONS)]
        try:
            while self.count < self.plan.per_partition * PARTITIONS:
                try:
                    with WireClient(self.address) as client:
                        self.read(client)
                except OSError:
                    time.sleep(0.02)  # until the server is back
        except Exception as error:
            self.problem = repr(error)
            raise

    def read(self, client: WireClient) -> None:
        while self.count < self.plan.per_partition * PARTITIONS:
            response = client.request(self.request())
            arrived_ms = now_ms()
            for part in response.responses[0].partitions if response.responses else ():
                assert part.error_code == 0, part.error_code
                if part.records:
                    self.take(part.partition_index, bytes(part.records), arrived_ms)

    def request(self) -> FetchRequest:
        wanted = [
            FetchPartition(
                partition=index,
                current_leader_epoch=-1,
                fetch_offset=self.positions[index],
                partition_max_bytes=1 << 20,
            )
            for index in range(PARTITIONS)
        ]
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=4 << 20,
            session_epoch=-1,
            topics=[FetchTopic(topic=TOPIC, partitions=wanted)],
        )

    def take(self, partition: int, data: bytes, arrived_ms: int) -> None:
        came, due = self.came[partition], self.plan.due_ms[partition]
        for record in read_records(data):
            if record.offset < self.positions[partition]:
                continue
            assert record.value is not None
            number = int(record.value.split(b" ")[0])
            assert not came[number], f"{number} of partition {partition} came twice"
            came[number] = 1
            assert record.timestamp == due[number], "its timestamp is when it was due"
            assert arrived_ms >= due[number] - SLACK_MS, f"{due[number] - arrived_ms} ms early"
            assert due[number] >= self.latest_ms[partition], "not in the order of due times"
            self.latest_ms[partition] = due[number]
            self.arrivals.append((due[number], arrived_ms))
            self.count += 1
        headers = [header for _, header in iterate_headers(data)]
        self.positions[partition] = max(self.positions[partition], headers[-1].next_offset)


@dataclass
class Outage:
    """The time from a kill until the server is ready again."""

    killed_ms: int
    ready_ms: int

    def disturbs(self, arrivals: list[tuple[int, int]]) -> tuple[int, int]:
        """Return the first and the last due time of the records that it delayed; `arrivals` are sorted."""
        dues, last_arrivals = [], []
        last = 0
        for due_ms, arrived_ms in arrivals:
            last = max(last, arrived_ms)
            dues.append(due_ms)
            last_arrivals.append(last)
        for at_ms in range(self.ready_ms, dues[-1], 10):
            before = bisect_right(dues, at_ms - CAUGHT_UP_MS)
            if not before or last_arrivals[before - 1] <= at_ms:
                return self.killed_ms - BEFORE_A_KILL_MS, at_ms
        return self.killed_ms - BEFORE_A_KILL_MS, dues[-1]


def undisturbed(arrivals: list[tuple[int, int]], outages: list[Outage]) -> list[int]:
    """Return the lateness of the records that were due outside of outages."""
    arrivals = sorted(arrivals)
    spans = [outage.disturbs(arrivals) for outage in outages]
    return [
        arrived_ms - due_ms
        for due_ms, arrived_ms in arrivals
        if not any(first <= due_ms <= last for first, last in spans)
    ]


def quantiles(times_ms: Sequence[int]) -> str:
    ordered = sorted(times_ms)
    return ", ".join(
        f"{name} {ordered[min(len(ordered) - 1, int(len(ordered) * share))]} ms"
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("most", 1.0))
    )


class Run:
    """A server, a topic, and the measurements."""

    def __init__(self, tmp_path: Path, records: int) -> None:
        self.server = ServerProcess(tmp_path / "data", log_path=tmp_path / "server.log")
        rate = 15_000  # more than two busy cores schedule and deliver in a second
        self.plan = Plan(records // PARTITIONS, 15 + records / rate, max(10.0, records / rate))
        self.lines: list[str] = []
        self.answered = 0
        self.outages: list[Outage] = []
        self._condition = threading.Condition()

    def count(self, records: int) -> None:
        with self._condition:
            self.answered += records
            self._condition.notify_all()

    def wait_for(self, records: int, timeout_s: float) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: self.answered >= records, timeout_s)

    def kill(self) -> None:
        killed_ms = now_ms()
        self.server.kill()
        self.server.start()
        self.outages.append(Outage(killed_ms, now_ms()))

    def memory_mb(self) -> int:
        return int(psutil.Process(self.server.pid).memory_info().rss >> 20)

    def tell(self, line: str) -> None:
        print(line)
        self.lines.append(line)

    def schedule(self) -> None:
        """Let the producers schedule all records, with three kills meanwhile."""
        plan, total = self.plan, self.plan.per_partition * PARTITIONS
        address = (self.server.host, self.server.port)
        empty_mb = self.memory_mb()
        producers = [Producer(plan, index, address, self.count) for index in range(PARTITIONS)]
        threads = [threading.Thread(target=producer.run) for producer in producers]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for quarter in (1, 2, 3):
            self.wait_for(total * quarter // 4, 120 + total / 1000)
            self.kill()
        for thread in threads:
            thread.join(120 + total / 1000)
            assert not thread.is_alive()
        assert not any(producer.problem for producer in producers)
        took_s = time.monotonic() - began
        self.tell(f"{total} records scheduled in {took_s:.1f} s, three kills included")
        self.tell(
            f"memory of the server: {empty_mb} MB empty, {self.memory_mb()} MB with all pending"
        )
        assert now_ms() < plan.start_ms, "all is scheduled before the first record is due"

    def deliver(self) -> None:
        """Read all records in order of delivery, with two kills meanwhile."""
        plan = self.plan
        reader = Reader(plan, (self.server.host, self.server.port))
        thread = threading.Thread(target=reader.run)
        self.kill()  # all are pending
        self.tell(f"ready {self.server.ready_after_s:.2f} s after a kill with all pending")
        thread.start()
        for share in (0.25, 0.5):
            at_ms = plan.start_ms + int((plan.end_ms - plan.start_ms) * share)
            thread.join(max(0.0, (at_ms - now_ms()) / 1000))
            self.kill()
        thread.join(60 + plan.spread_s * 3)
        assert not reader.problem, reader.problem
        assert not thread.is_alive(), f"{reader.count} records came"
        assert all(all(came) for came in reader.came), "none is missing"
        late_ms = [arrived_ms - due_ms for due_ms, arrived_ms in reader.arrivals]
        undisturbed_ms = undisturbed(reader.arrivals, self.outages)
        self.tell(f"lateness, outages of two kills included: {quantiles(late_ms)}")
        self.tell(
            f"lateness of the {len(undisturbed_ms)} records that were due otherwise: "
            f"{quantiles(undisturbed_ms)}"
        )
        self.tell(f"memory of the server at the end: {self.memory_mb()} MB")
        self.tell(
            f"load of the machine meanwhile: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
        )
        assert len(undisturbed_ms) >= UNDISTURBED_SHARE * reader.count
        assert statistics.median(undisturbed_ms) < 1000


def test_slow_records_outside_an_outage_are_measured() -> None:
    outages = [Outage(10_000, 12_000)]
    prompt = [(due, due + 5) for due in range(0, 10_000, 10)]
    held_up = [(due, max(due, 12_000) + 700) for due in range(10_000, 12_500, 10)]
    slow = [(due, due + 1200) for due in range(13_000, 20_000, 10)]
    assert set(undisturbed(prompt[:900] + held_up, outages)) == {5}
    assert set(undisturbed(prompt + held_up + slow, outages)) == {5, 1200}
    # If a server never catches up, there is nothing to measure.
    assert not undisturbed([(due, due + 1200) for due in range(10_000, 20_000, 10)], outages)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_scheduled_records_are_delivered_once_and_in_time_despite_kills(tmp_path: Path) -> None:
    run = Run(tmp_path, RECORDS)
    try:
        run.server.start()
        with WireClient((run.server.host, run.server.port)) as client:
            client.create_topic(TOPIC, PARTITIONS, headrace_delay_enable="true")
        run.plan.begin(seed=RECORDS)
        run.schedule()
        run.deliver()
        assert run.server.stop() == 0
    except BaseException:
        print(run.server.log[-5000:])
        raise
    finally:
        run.server.kill()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text("\n".join([f"{RECORDS} scheduled records", *run.lines, ""]))
