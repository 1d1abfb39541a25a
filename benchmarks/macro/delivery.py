"""Measure the cost of delivery semantics and rebalances on Headrace and Apache Kafka, in turns, with the same clients.

    python -m benchmarks.macro.delivery [--rounds N] [--quick] [--page]

librdkafka is the client of both brokers for transactions and rebalances, Headrace's workers for exactly-once
processing. On both brokers the sessions of consumer groups last six seconds, the minimum for classic members.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.macro import page, workloads
from benchmarks.macro.compare_kafka import RESULTS, commit, write
from benchmarks.macro.exactly_once_loads import end_to_end
from benchmarks.macro.marked_page import ROOT, MarkedPage
from benchmarks.macro.parts import FAILURES
from benchmarks.macro.rebalance_loads import (
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    measure_rebalances,
)
from benchmarks.macro.report import HEADRACE, KAFKA, Results, Row
from benchmarks.macro.servers import GROUP_SETTINGS, PRESETS, Meter, Server, machine
from benchmarks.macro.transaction_loads import transactional_produce
from tests.fixtures.kafka import KAFKA_JVM_OPTIONS, KafkaServer
from tests.fixtures.targets import HeadraceServer

TIMING = {
    "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_INTERVAL_MS),
}
LEAST = {  # the minimum that Kafka accepts by default
    "group.consumer.min.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_INTERVAL_MS),
}
TRANSACTIONS_MS = (10, 100, 1_000)
REBALANCES_IN = "os"  # the preset: only a few records of the coordinator wait for a disk
PAGE = MarkedPage(ROOT / "docs" / "reports" / "delivery-performance.md", page.tables)


def make_server(target: str, preset: str, directory: Path) -> Server:
    """Return a broker with short sessions that is not started yet."""
    settings = {**GROUP_SETTINGS, **TIMING}
    if target == HEADRACE:
        return HeadraceServer(directory, settings=settings, arguments=["--durability", preset])
    flush = {"log.flush.interval.messages": "1"} if preset == "fsync" else {}
    settings |= {**LEAST, **flush}
    return KafkaServer(directory, settings=settings, jvm_options=KAFKA_JVM_OPTIONS)


@dataclass
class Loads:
    """All loads on one running broker."""

    target: str
    preset: str
    server: Server
    seconds: float
    results: Results

    def run(self) -> None:
        """Run the loads in turn; record a load that fails, and continue."""
        for transaction_ms in TRANSACTIONS_MS:
            self._guarded("transactions", partial(self._transactions, transaction_ms))
        self._guarded("exactly once", self._exactly_once)
        if self.preset == REBALANCES_IN:
            self._guarded("rebalances", self._rebalances)

    def _guarded(self, what: str, load: Callable[[], None]) -> None:
        print(f"  {self.preset}, {self.target}: {what}", file=sys.stderr, flush=True)
        try:
            load()
        except FAILURES as error:
            self.results.fail(f"{self.preset}, {self.target}, {what}: {error}"[:300])
            print(f"  {error}", file=sys.stderr, flush=True)

    def _note(self, case: str, metric: str, value: float) -> None:
        self.results.note(Row(self.preset, case, metric), self.target, value)

    def _name(self) -> str:
        return f"delivery-{time.monotonic_ns()}"

    def _transactions(self, transaction_ms: int) -> None:
        topic, meter = self._name(), Meter(self.server.pid)
        workloads.create_topic(self.server.bootstrap, topic)
        case = f"transactions of {transaction_ms:,} ms, 100 B"
        found = transactional_produce(
            self.server.bootstrap,
            topic,
            transaction_ms=transaction_ms,
            seconds=self.seconds,
            record_bytes=100,
        )
        cost = meter.cost()
        self._note(case, "broker CPU us/record", cost.cpu_s * 1e6 / found.pop("records"))
        for metric, value in found.items():
            self._note(case, metric, value)
        workloads.delete_topic(self.server.bootstrap, topic)

    def _exactly_once(self) -> None:
        source, sink = self._name(), self._name()
        for topic in (source, sink):
            workloads.create_topic(self.server.bootstrap, topic)
        for metric, value in end_to_end(
            self.server.bootstrap, source, sink, seconds=self.seconds
        ).items():
            self._note("exactly-once worker, 200 records a second", metric, value)
        for topic in (source, sink):
            workloads.delete_topic(self.server.bootstrap, topic)

    def _rebalances(self) -> None:
        measure_rebalances(self.server.bootstrap, self._name, self._note)


def run_round(preset: str, number: int, seconds: float, results: Results) -> None:
    """Run one round of one preset. Only one broker runs at a time, because a second one would disturb most loads."""
    for target in (HEADRACE, KAFKA)[:: 1 if number % 2 == 0 else -1]:
        scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        server = make_server(target, preset, scratch / target)
        try:
            server.start()
            topic = f"warm-{time.monotonic_ns()}"
            workloads.create_topic(server.bootstrap, topic)
            transactional_produce(
                server.bootstrap, topic, transaction_ms=20, seconds=seconds, record_bytes=100
            )
            Loads(target, preset, server, seconds, results).run()
        finally:
            server.stop()
            shutil.rmtree(scratch, ignore_errors=True)


def main() -> int:
    """Run the comparison and write its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short loads, for a first look")
    parser.add_argument("--preset", choices=tuple(PRESETS), action="append", help="only this one")
    parser.add_argument(
        "--page", action="store_true", help="write docs/reports/delivery-performance.md as well"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    arguments = parser.parse_args()
    begun = datetime.now(UTC)
    facts: dict[str, Any] = {
        "date": begun.strftime("%Y-%m-%d"),
        "commit": commit(),
        "kafka": "4.3.0",
        "rounds": arguments.rounds,
        "machine": machine(),
        "presets": PRESETS,
        "peers": {},
    }
    results = Results()
    for number in range(arguments.rounds):
        for preset in arguments.preset or PRESETS:
            print(f"round {number + 1}, {preset} ...", file=sys.stderr, flush=True)
            try:
                run_round(preset, number, 2 if arguments.quick else 5, results)
            except FAILURES as error:  # earlier measurements are kept
                results.fail(f"round {number + 1} of {preset} did not end: {error}"[:300])
                print(f"  {error}", file=sys.stderr, flush=True)
    facts["minutes"] = round((datetime.now(UTC) - begun).total_seconds() / 60, 1)
    stem = f"delivery-{facts['date']}-{facts['commit']}{'-quick' if arguments.quick else ''}"
    write(arguments.output, stem, facts, results)
    print((arguments.output / f"{stem}.md").read_text())
    if arguments.page:
        PAGE.write(arguments.output / f"{stem}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
