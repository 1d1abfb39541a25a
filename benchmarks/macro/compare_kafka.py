"""Headrace and Apache Kafka on one machine, in one run, measured in turns.

    python -m benchmarks.macro.compare_kafka [--quick] [--rounds N] [--only PART] [--output DIRECTORY]

Each round starts both brokers for each preset of durability and puts every load on one and then on the other, in an
order that alternates. The result is a table of medians with their extremes and the ratio of the medians, and a JSON
file with every single value.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from benchmarks.macro import workloads
from benchmarks.macro.report import Measurement, Results, render
from benchmarks.macro.servers import (
    PRESETS,
    TARGETS,
    Meter,
    Server,
    machine,
    make_server,
    time_to_first_acknowledgement,
)
from benchmarks.macro.workloads import Run
from tools.fetch_java import JavaUnavailableError, kafka_class_path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Scale:
    """How much of each load."""

    rounds: int
    records_100: int
    records_1024: int
    paced_seconds: int
    requests: int
    starts: int
    acks: tuple[str, ...]

    def records(self, record_bytes: int) -> int:
        """Records of one throughput run."""
        return self.records_100 if record_bytes == 100 else self.records_1024


FULL = Scale(3, 1_000_000, 250_000, 3, 4_000, 1, ("1", "all"))
QUICK = Scale(1, 300_000, 75_000, 2, 1_500, 1, ("all",))
PACED_PER_S = 500
SIZES = (100, 1024)
FIRST_ACK = "s to the first acknowledgement"
FSYNC_SHARE = 5  # a synced broker gets a fifth of the records
WARM_UP_RECORDS = 100_000


@dataclass
class Broker:
    """A running broker of the comparison."""

    target: str
    preset: str
    server: Server
    meter: Meter
    topics: int = 0
    results: Results = field(default_factory=list)

    def topic(self) -> str:
        """A new topic."""
        self.topics += 1
        name = f"bench-{self.topics}"
        workloads.create_topic(self.server.bootstrap, name)
        return name

    def note(self, case: str, metric: str, value: float | None) -> None:
        """Keeps one value."""
        if value is not None:
            self.results.append(Measurement(self.preset, case, metric, self.target, value))

    def measure(
        self, case: str, load: Callable[..., Run], topic: str, *, per: int = 0, **arguments: object
    ) -> None:
        """Runs a load and keeps its rate, its latencies and what the broker used: per request if `per` counts them."""
        self.meter.reset()
        run = load(self.server.bootstrap, topic, **arguments)
        cost = self.meter.cost()
        self.note(case, "records/s", run.records_per_s)
        self.note(case, "p50 ms", run.p50_ms)
        self.note(case, "p99 ms", run.p99_ms)
        if per:
            self.note(case, "broker CPU s/1000 requests", cost.cpu_s / per * 1000)
        else:
            self.note(case, "broker CPU s/GB", cost.cpu_s / (run.megabytes / 1000))


@contextmanager
def running(preset: str, scratch: Path, results: Results, starts: int) -> Iterator[list[Broker]]:
    """Both brokers, after their start-up has been measured."""
    brokers: list[Broker] = []
    servers = [make_server(target, preset, scratch / target) for target in TARGETS]
    try:
        for target, server in zip(TARGETS, servers, strict=True):
            seconds = time_to_first_acknowledgement(server, "start")
            server.wait_ready()
            broker = Broker(target, preset, server, Meter(server.pid), results=results)
            brokers.append(broker)
            broker.note("first start", FIRST_ACK, seconds)
            for _ in range(starts):
                server.stop()
                seconds = time_to_first_acknowledgement(server, "start")
                server.wait_ready()
                broker.note("restart", FIRST_ACK, seconds)
            broker.meter = Meter(server.pid)
        yield brokers
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def run_round(preset: str, number: int, scale: Scale, parts: set[str], results: Results) -> None:
    """One round of one preset."""
    scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    with running(preset, scratch, results, scale.starts) as brokers:
        ordered = brokers if number % 2 == 0 else brokers[::-1]
        for broker in ordered:
            broker.note("memory", "MB resident, idle", broker.meter.rss_mb())
        for broker in ordered:
            _warm_up(broker)
        if "requests" in parts:
            _requests(ordered, scale)
        if "paced" in parts:
            _paced(ordered, scale)
        if "throughput" in parts:
            _throughput(ordered, scale)
        for broker in ordered:
            broker.note("memory", "MB resident, loaded", broker.meter.rss_mb())
            broker.note("memory", "MB resident, peak", broker.meter.peak_mb())


def _warm_up(broker: Broker) -> None:
    topic, bootstrap = broker.topic(), broker.server.bootstrap
    for acks in ("1", "all"):
        workloads.librdkafka_produce(
            bootstrap, topic, records=WARM_UP_RECORDS, record_bytes=100, acks=acks
        )
    workloads.plain_requests(bootstrap, topic, requests=1000, in_flight=1)
    workloads.librdkafka_consume(bootstrap, topic, records=WARM_UP_RECORDS, record_bytes=100)
    workloads.delete_topic(bootstrap, topic)


def _requests(brokers: list[Broker], scale: Scale) -> None:
    for in_flight in (1, 32):
        count = scale.requests * (1 if in_flight == 1 else 4)
        case = f"requests of one 100 B record, {in_flight} in flight"
        for broker in brokers:
            load, topic = workloads.plain_requests, broker.topic()
            broker.measure(case, load, topic, per=count, requests=count, in_flight=in_flight)


def _paced(brokers: list[Broker], scale: Scale) -> None:
    records = PACED_PER_S * scale.paced_seconds
    for record_bytes, acks in product(SIZES, scale.acks):
        case = f"{PACED_PER_S}/s, {record_bytes} B, acks={acks} (librdkafka, no linger)"
        for broker in brokers:
            broker.measure(
                case,
                workloads.paced_latency,
                broker.topic(),
                per=records,
                records=records,
                record_bytes=record_bytes,
                acks=acks,
                records_per_s=PACED_PER_S,
            )


def _throughput(brokers: list[Broker], scale: Scale) -> None:
    producers = (("java", workloads.java_produce), ("librdkafka", workloads.librdkafka_produce))
    consumers = (("java", workloads.java_consume), ("librdkafka", workloads.librdkafka_consume))
    for record_bytes in SIZES:
        share = FSYNC_SHARE if brokers[0].preset == "fsync" else 1
        amount = {"records": scale.records(record_bytes) // share, "record_bytes": record_bytes}
        full: dict[str, str] = {}
        for acks, (name, produce) in product(scale.acks, producers):
            for broker in brokers:
                _delete(broker, full)
                topic = full[broker.target] = broker.topic()
                case = f"produce {record_bytes} B, acks={acks} ({name})"
                broker.measure(case, produce, topic, **amount, acks=acks)
        # Durability does not touch reads, so they are measured once.
        for name, consume in consumers if share == 1 else ():
            for broker in brokers:
                case = f"consume {record_bytes} B ({name})"
                broker.measure(case, consume, full[broker.target], **amount)
        for broker in brokers:
            _delete(broker, full)


def _delete(broker: Broker, topics: dict[str, str]) -> None:
    if broker.target in topics:
        workloads.delete_topic(broker.server.bootstrap, topics.pop(broker.target))


def commit() -> str:
    """The commit that is measured, marked if the work tree differs from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", "src")
        return git("rev-parse", "--short=10", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> int:
    """Runs the comparison and writes its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round, for a first look")
    parser.add_argument("--rounds", type=int, help="rounds instead of the default")
    parser.add_argument("--preset", choices=tuple(PRESETS), action="append", help="only this one")
    parts = ("requests", "paced", "throughput")
    parser.add_argument("--only", choices=parts, action="append", help="only this part")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    arguments = parser.parse_args()
    try:
        kafka_class_path()
    except JavaUnavailableError as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 1
    scale = QUICK if arguments.quick else FULL
    begun = datetime.now(UTC)
    description = machine()
    results: Results = []
    for number in range(arguments.rounds or scale.rounds):
        for preset in arguments.preset or PRESETS:
            print(f"round {number + 1}, {preset} ...", file=sys.stderr, flush=True)
            run_round(preset, number, scale, set(arguments.only or parts), results)
    minutes = (datetime.now(UTC) - begun).total_seconds() / 60
    facts = {
        "date": begun.strftime("%Y-%m-%d"),
        "commit": commit(),
        "minutes": round(minutes, 1),
        "kafka": "4.3.0",
        "rounds": arguments.rounds or scale.rounds,
        "machine": description,
        "presets": PRESETS,
    }
    text = render(facts, results)
    print(text)
    arguments.output.mkdir(parents=True, exist_ok=True)
    stem = f"{facts['date']}-{facts['commit']}{'-quick' if arguments.quick else ''}"
    measurements = [vars(each) for each in results]
    (arguments.output / f"{stem}.json").write_text(
        json.dumps({**facts, "measurements": measurements}, indent=1) + "\n"
    )
    (arguments.output / f"{stem}.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
