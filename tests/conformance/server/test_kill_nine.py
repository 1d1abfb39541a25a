"""kill -9 at random moments under load: after the restart all acknowledged records are there, in order.

HEADRACE_KILL_CYCLES sets the number of kills (25), HEADRACE_KILL_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.protocol.messages.produce import PartitionProduceResponse
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import ServerProcess

CYCLES = int(os.environ.get("HEADRACE_KILL_CYCLES", "25"))
TOPIC = "ledger"
PARTITIONS = 4
WINDOW = 5
MAX_ACKS_PER_CYCLE = 250
CLEAN_STOP_EVERY = 7


@dataclass
class Batch:
    first: int
    count: int
    data: bytes


@dataclass
class Ledger:
    """The records that one producer sent to one partition. Values count up from 0, one per record."""

    partition: int
    idempotent: bool
    random: random.Random
    producer: tuple[int, int] = (-1, -1)
    next_value: int = 0
    acked: list[tuple[int, Batch]] = field(default_factory=list)
    unacked: deque[Batch] = field(default_factory=deque)
    acked_end: int = 0
    values: list[int] = field(default_factory=list)
    problem: str = ""

    def next_batch(self) -> Batch:
        count = self.random.randint(1, 12)
        pad = b"." * self.random.randint(0, 1500)
        first = self.next_value
        records = [(None, b"%d %s" % (first + index, pad), (), NOW_MS) for index in range(count)]
        producer_id, epoch = self.producer
        data = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first if self.idempotent else -1,
        )
        self.next_value += count
        return Batch(first, count, data)

    def begin(self, client: WireClient) -> None:
        """Continue after a restart: an idempotent producer repeats unacknowledged records, others do not."""
        if not self.idempotent:
            self.unacked.clear()
        elif self.producer == (-1, -1):
            self.producer = client.init_producer_id()
        for batch in self.unacked:
            client.send_batch(TOPIC, self.partition, batch.data)

    def load(self, address: tuple[str, int], acknowledged: Callable[[int], None]) -> None:
        """Produce until the connection breaks."""
        try:
            with WireClient(address) as client:
                self.begin(client)
                while not self.problem:
                    while len(self.unacked) < WINDOW:
                        batch = self.next_batch()
                        self.unacked.append(batch)
                        client.send_batch(TOPIC, self.partition, batch.data)
                    _, response = client.receive()
                    self.acknowledge(response.responses[0].partition_responses[0])
                    acknowledged(self.partition)
        except OSError:
            return
        except Exception as error:  # shown by the test, which runs in another thread
            self.problem = repr(error)
            raise

    def acknowledge(self, part: PartitionProduceResponse) -> None:
        error_code, base_offset = part.error_code, part.base_offset
        if error_code:
            self.problem = f"error {error_code} for partition {self.partition}"
            return
        batch = self.unacked.popleft()
        if self.idempotent and base_offset != batch.first:
            self.problem = f"value {batch.first} acknowledged at offset {base_offset}"
        self.acked.append((base_offset, batch))
        self.acked_end = max(self.acked_end, base_offset + batch.count)

    def verify(self, client: WireClient) -> None:
        """Read the new records of the partition, and compare them with the acknowledged ones."""
        for record in client.read(TOPIC, self.partition, len(self.values)):
            assert record.offset == len(self.values), "offsets have no holes"
            assert record.value is not None
            value = int(bytes(record.value).split(b" ")[0])
            assert not self.values or value > self.values[-1], "in order, nothing twice"
            if self.idempotent:
                assert value == record.offset, "nothing twice, nothing missing"
            self.values.append(value)
        assert len(self.values) >= self.acked_end, "acknowledged records are missing"
        for base_offset, batch in self.acked:
            stored = self.values[base_offset : base_offset + batch.count]
            assert stored == list(range(batch.first, batch.first + batch.count))
        self.acked.clear()


class Acknowledgements:
    """Counts acknowledgements by partition; a test waits for a number in all, or for one of each partition."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._counts: Counter[int] = Counter()

    def add(self, partition: int) -> None:
        with self._condition:
            self._counts[partition] += 1
            self._condition.notify_all()

    def wait_for(self, count: int, timeout_s: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._counts.total() >= count, timeout_s)

    def wait_for_load(self) -> None:
        with self._condition:
            loaded = self._condition.wait_for(lambda: len(self._counts) == PARTITIONS, 30)
        assert loaded, "there is load"


def run_cycle(
    server: ServerProcess, ledgers: list[Ledger], rng: random.Random, *, clean: bool, first: bool
) -> None:
    address = (server.host, server.port)
    acknowledgements = Acknowledgements()
    threads = [
        threading.Thread(target=ledger.load, args=(address, acknowledgements.add))
        for ledger in ledgers
    ]
    for thread in threads:
        thread.start()
    if first:  # later ones may well end before anything is acknowledged
        acknowledgements.wait_for_load()
    acknowledgements.wait_for(rng.randint(0, MAX_ACKS_PER_CYCLE), timeout_s=rng.uniform(0.5, 1.5))
    if clean:
        assert server.stop() == 0
    else:
        server.kill()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for ledger in ledgers:
        assert not ledger.problem, ledger.problem


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("durability", "cycles"), [("fsync", CYCLES), ("os", max(1, CYCLES // 5))])
def test_acknowledged_records_survive_kill_nine(
    tmp_path: Path, durability: str, cycles: int
) -> None:
    seed = int(os.environ.get("HEADRACE_KILL_SEED", random.randrange(1 << 32)))
    print(f"HEADRACE_KILL_SEED={seed}")
    rng = random.Random(seed)
    ledgers = [
        Ledger(partition, idempotent=partition % 2 == 0, random=random.Random(rng.random()))
        for partition in range(PARTITIONS)
    ]
    server = ServerProcess(
        tmp_path / "data", log_path=tmp_path / "server.log", arguments=["--durability", durability]
    )
    try:
        server.start()
        with WireClient((server.host, server.port)) as client:
            client.create_topic(TOPIC, PARTITIONS, segment_bytes="262144")
        for cycle in range(cycles):
            clean = cycle % CLEAN_STOP_EVERY == CLEAN_STOP_EVERY - 1
            run_cycle(server, ledgers, rng, clean=clean, first=not cycle)
            server.start()
            with WireClient((server.host, server.port)) as client:
                for ledger in ledgers:
                    ledger.verify(client)
        assert server.stop() == 0
    except BaseException:
        print(server.log[-5000:])
        raise
    finally:
        server.kill()
