"""Scheduled records on three brokers with random faults: each is released once, after its delivery time.

An idempotent producer repeats each batch until it is acknowledged by all in-sync replicas. Meanwhile brokers are
killed, lose power, pause, are cut off from each other and from the metadata store, and other brokers are elected. At
the end all replicas have the same log, with every record once.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

import pytest

from headrace.core.scheduled.schedule import Schedule
from headrace.errors import ErrorCode
from headrace.records.batch import iterate_headers
from headrace.records.builder import build_batch
from headrace.records.reader import read_records
from tests.fixtures.broker_harness import Pending, produce_request
from tests.fixtures.cluster import SimulatedCluster

pytestmark = pytest.mark.slow

SEEDS: Final = int(os.environ.get("HEADRACE_DELAY_SEEDS", "60"))
BROKERS: Final = (1, 2, 3)
LONGEST_MS: Final = 30_000
BATCHES: Final = 25


class Run:
    """One run. `due_ms` has the earliest delivery time of each record."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        options: dict[str, Any] = {}
        if seed % 2:  # a follower gets one batch at a time, of the partition or of its schedule
            options = {"replica_fetch_response_max_bytes": 1}
        self.cluster = SimulatedCluster(3, seed=seed, **options)
        self.cluster.create_topic(
            "t",
            replicas=[BROKERS],
            headrace_delay_enable="true",
            min_insync_replicas="2",
            segment_bytes="2000" if seed % 4 == 3 else "1000000",
        )
        self.due_ms: dict[bytes, int] = {}
        self.sequence = 0

    def run(self) -> None:
        for _ in range(BATCHES):
            self._send_until_acknowledged()
        self._check()

    # Producer

    def _send_until_acknowledged(self) -> None:
        chance, cluster = self.chance, self.cluster
        count = chance.randint(1, 4)
        contents = [b"%d" % (self.sequence + step) for step in range(count)]
        delays = [
            chance.choice([None, 0, 0, 10, 50, 1_000, chance.randrange(LONGEST_MS)])
            for _ in contents
        ]
        for value, delay_ms in zip(contents, delays, strict=True):
            self.due_ms[value] = cluster.now_ms + (delay_ms or 0)
        records = build_batch(
            [
                (None, value, self._headers(delay_ms), cluster.now_ms)
                for value, delay_ms in zip(contents, delays, strict=True)
            ],
            producer_id=7,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        pending: Pending | None = None
        for attempt in range(400):
            if pending is None:
                pending = self._send(records)
            if attempt < 20:
                self._fault()
            elif attempt == 20:
                self._repair()
            cluster.advance(chance.choice([1, 2, 5, 20, 300, 2_000]))
            if pending is not None and (error := self._error(pending)) is not None:
                if error is ErrorCode.NONE:
                    self.sequence += count
                    return
                pending = None
        raise AssertionError(f"batch {self.sequence} is not acknowledged")

    def _headers(self, delay_ms: int | None) -> tuple[tuple[str, bytes], ...]:
        return () if delay_ms is None else (("headrace.delay-ms", b"%d" % delay_ms),)

    def _send(self, records: bytes) -> Pending | None:
        leader = self.cluster.leader("t")
        if leader < 0 or not self.cluster.brokers[leader].is_running:
            return None
        broker = self.cluster.brokers[leader]
        if broker.is_paused:
            return None
        return broker.send(produce_request("t", 0, records, timeout_ms=5_000))

    def _error(self, pending: Pending) -> ErrorCode | None:
        """Return the result; None if there is none yet. A killed broker gives no response."""
        if pending.done:
            response: Any = pending.response
            return ErrorCode(response.responses[0].partition_responses[0].error_code)
        return ErrorCode.REQUEST_TIMED_OUT if self.chance.random() < 0.1 else None

    # Faults

    def _fault(self) -> None:
        chance, cluster = self.chance, self.cluster
        broker_id = chance.choice(BROKERS)
        broker = cluster.brokers[broker_id]
        match chance.randrange(30):
            case 0 if broker.is_running:
                cluster.kill(broker_id, power=chance.random() < 0.5)
            case 1 | 2 if not broker.is_running:
                cluster.start(broker_id)
            case 3:
                cluster.cut(
                    broker_id, chance.choice([each for each in BROKERS if each != broker_id])
                )
            case 4 if broker.is_running:
                cluster.cut_store(broker_id)
            case 5 | 6:
                cluster.heal()
            case 7 if broker.is_running and not broker.is_paused:
                broker.pause()
            case 8 | 9 | 10:
                isr = cluster.state("t").isr
                if broker_id in isr and broker.is_running:
                    cluster.elect("t", 0, broker_id)
            case _:
                pass

    def _repair(self) -> None:
        self.cluster.heal()
        for broker_id, broker in self.cluster.brokers.items():
            if not broker.is_running:
                self.cluster.start(broker_id)

    # Result

    def _check(self) -> None:
        cluster = self.cluster
        self._repair()
        cluster.run_until(lambda: cluster.is_in_sync("t"), 300_000)
        cluster.advance(2 * LONGEST_MS)
        cluster.run_until(lambda: cluster.is_in_sync("t"), 300_000)
        logs = {cluster.log_of(each, "t") for each in BROKERS}
        assert len(logs) == 1, "the replicas differ"
        found: dict[bytes, int] = {}
        log = logs.pop()
        for position, header in iterate_headers(log):
            if header.is_control:
                continue
            for record in read_records(log[position : position + header.size]):
                assert record.value is not None
                assert record.value not in found, f"{record.value!r} was released twice"
                found[record.value] = record.timestamp
        assert found.keys() == self.due_ms.keys(), "records are missing"
        for value, at_ms in found.items():
            assert at_ms >= self.due_ms[value], f"{value!r} was released early"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_scheduled_record_is_released_once(seed: int) -> None:
    Run(seed).run()


@pytest.mark.parametrize("seed", [17, 22, 31])
def test_a_release_before_the_commit_is_noticed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Schedule, "_releasable_end", property(lambda schedule: schedule.log.log_end_offset)
    )
    with pytest.raises(AssertionError):
        Run(seed).run()
