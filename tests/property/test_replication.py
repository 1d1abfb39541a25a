"""Three brokers that replicate while brokers die, lose power and sessions: nothing acknowledged is lost."""

from __future__ import annotations

import random

import pytest

from headrace.errors import ErrorCode
from tests.fixtures.broker_harness import Pending, batch, produce_request, values
from tests.fixtures.cluster import SimulatedCluster

TOPIC, MIN_INSYNC = "t", 2
RUNS = [*((seed, "fsync") for seed in range(6)), *((seed, "os") for seed in (0, 1, 2, 11, 20, 21))]
"""Seeds and durabilities. If no replica leaves the ISR after a power cut, the last three runs lose records."""
KINDS = ("kill", "kill", "power", "cut", "cut store", "session", "heal", "start")


class Simulation:
    """A cluster with one topic, and its faults."""

    def __init__(self, seed: int, durability: str) -> None:
        self.chance = random.Random(f"replication {seed} {durability}")
        self.is_synced = durability == "fsync"
        self.cluster = SimulatedCluster(3, seed=seed)
        self.partitions = self.chance.choice([1, 3])
        self.cluster.create_topic(
            TOPIC,
            self.partitions,
            min_insync_replicas=str(MIN_INSYNC),
            headrace_durability=durability,
        )
        self.number = 0
        self.sent: list[tuple[int, bytes, Pending]] = []
        self.high_watermarks: dict[tuple[int, int, int], int] = {}

    # Clients and faults

    def produce(self) -> None:
        index = self.chance.randrange(self.partitions)
        leader = self.cluster.leader(TOPIC, index)
        broker = self.cluster.brokers.get(leader)
        if broker is None or not broker.is_running:
            return
        self.number += 1
        value = b"%d" % self.number
        request = produce_request(TOPIC, index, batch(value), timeout_ms=5_000)
        self.sent.append((index, value, broker.send(request)))

    def fail(self) -> None:
        chance, cluster = self.chance, self.cluster
        running = [each for each, broker in cluster.brokers.items() if broker.is_running]
        down = [each for each in cluster.brokers if each not in running]
        kind = chance.choice([*KINDS, "start", "start"])
        if kind in {"kill", "power"} and len(running) > 1:
            broker_id = chance.choice(running)
            # Without a sync, a record survives on another replica only: one power cut at a time.
            power = kind == "power" and (self.is_synced or (not down and cluster.is_in_sync(TOPIC)))
            cluster.kill(broker_id, power=power, ends_session=chance.random() < 0.3)
        elif kind == "cut":
            one, other = chance.sample([*cluster.brokers], 2)
            cluster.cut(one, other, both_ways=chance.random() < 0.5)
        elif kind == "cut store" and running:
            cluster.cut_store(chance.choice(running))
        elif kind == "session" and running:
            cluster.brokers[chance.choice(running)].metadata.lose_session()
        elif kind == "heal":
            cluster.heal()
        elif kind == "start" and down:
            cluster.start(chance.choice(down))

    # Checks

    def check(self) -> None:
        for broker_id, broker in self.cluster.brokers.items():
            if not broker.is_running:
                continue
            for index in range(self.partitions):
                partition = broker.broker.services.partitions.find(TOPIC, index)
                if partition is not None:
                    log = partition.log
                    assert log.high_watermark <= log.log_end_offset
                    key = broker_id, broker.life, index
                    assert log.high_watermark >= self.high_watermarks.get(key, 0)
                    self.high_watermarks[key] = log.high_watermark

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for _ in range(self.chance.randint(0, 3)):
                self.produce()
            self.cluster.advance(self.chance.choice([1, 5, 50, 500, 3_000]))
            self.check()
            if self.chance.random() < 0.3:
                self.fail()
        self.recover()

    def recover(self) -> None:
        """End all faults; then everything is in sync again, and what was acknowledged is there."""
        cluster = self.cluster
        cluster.heal()
        for broker_id, broker in cluster.brokers.items():
            if not broker.is_running:
                cluster.start(broker_id)
        cluster.run_until(self.is_in_sync, 90_000)
        stored = [self.records(index) for index in range(self.partitions)]
        for index, value, pending in self.sent:
            if not pending.done:
                continue
            part = pending.response.responses[0].partition_responses[0]
            if part.error_code == ErrorCode.NONE:
                assert stored[index][part.base_offset] == value, "an acknowledged record is lost"
        for index in range(self.partitions):
            assert len({cluster.log_of(each, TOPIC, index) for each in cluster.brokers}) == 1
            assert cluster.replica(1, TOPIC, index).high_watermark == len(stored[index])
        for broker in cluster.brokers.values():
            errors = broker.journal.events("error")
            assert "replica_stopped" not in errors
            assert "replication_failed" not in errors, broker.journal.lines

    def is_in_sync(self) -> bool:
        """Return whether all replicas have everything, and know that it is committed."""
        logs = [self.cluster.replica(1, TOPIC, index).log for index in range(self.partitions)]
        return self.cluster.is_in_sync(TOPIC) and all(
            log.high_watermark == log.log_end_offset for log in logs
        )

    def records(self, index: int) -> list[bytes | None]:
        return values(self.cluster.log_of(1, TOPIC, index))


@pytest.mark.parametrize(("seed", "durability"), RUNS)
def test_acknowledged_records_survive_and_replicas_become_equal(seed: int, durability: str) -> None:
    Simulation(seed, durability).run(60)
