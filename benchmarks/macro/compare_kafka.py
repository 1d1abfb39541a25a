"""Compare Headrace with Apache Kafka on one machine, in one run, in turns; NATS and Redis are there for orientation.

    python -m benchmarks.macro.compare_kafka [--quick] [--rounds N] [--rows PART] [--preset PRESET] [--page]

Each round starts the brokers for each preset of durability. Each load goes to one broker and then to the other, in an
order that alternates. The result is a table of medians with minimum, maximum and ratio, and a JSON file with every
value.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.macro import page, workloads
from benchmarks.macro.parts import FAILURES, FULL, PARTS, QUICK, Broker, Round, Scale
from benchmarks.macro.peers import DURABILITY, PROGRAMS, version, why_not
from benchmarks.macro.report import HEADRACE, KAFKA, Results, render
from benchmarks.macro.servers import (
    PRESETS,
    Meter,
    machine,
    make_server,
    time_to_first_acknowledgement,
)
from tests.fixtures.kafka import TargetError
from tools.fetch_java import JavaUnavailableError, kafka_class_path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FIRST_ACK = "s to the first acknowledgement"
WARM_UP_RECORDS = 100_000
PEER_PARTS = {"latency", "singles"}
CLIENT_PROCESSES = 3


@contextmanager
def running(preset: str, scratch: Path, results: Results) -> Iterator[list[Broker]]:
    """Run both brokers for the length of a block, and measure their start."""
    brokers: list[Broker] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        for target in (HEADRACE, KAFKA):
            server = make_server(target, preset, scratch / target)
            stack.callback(server.stop)
            seconds = time_to_first_acknowledgement(server, "start")
            server.wait_ready()
            broker = Broker(target, preset, server, Meter(server.pid), results)
            broker.note("first start", FIRST_ACK, seconds)
            server.stop()
            seconds = time_to_first_acknowledgement(server, "start")
            server.wait_ready()
            broker.note("restart", FIRST_ACK, seconds)
            broker.meter = Meter(server.pid)
            brokers.append(broker)
        yield brokers


@contextmanager
def running_peers(preset: str, scratch: Path, results: Results) -> Iterator[list[Broker]]:
    """Run the other servers that are installed and take part in the preset."""
    brokers: list[Broker] = []
    with ExitStack() as stack:
        for name, (_, make) in PROGRAMS.items():
            reason = why_not(name, preset)
            if reason:
                if reason not in results.failures:
                    results.fail(reason)
                continue
            server = make(scratch / name, preset)
            stack.callback(server.stop)
            server.start()
            brokers.append(Broker(name, preset, server, Meter(server.pid), results))
        yield brokers


def run_round(
    preset: str, number: int, *, scale: Scale, parts: list[str], pool: Executor, results: Results
) -> None:
    """Run one round of one preset."""
    scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    with ExitStack() as stack:
        brokers = stack.enter_context(running(preset, scratch, results))
        ordered = brokers if number % 2 == 0 else brokers[::-1]
        peers: list[Broker] = []
        if PEER_PARTS & set(parts):
            peers = stack.enter_context(running_peers(preset, scratch, results))
        for broker in ordered:
            broker.note("memory", "MB resident, idle", broker.meter.rss_mb())
        for broker in ordered:
            _warm_up(broker)
        this = Round(preset, scale, ordered, peers, pool)
        for part in parts:
            begun = time.monotonic()
            PARTS[part](this)
            print(f"  {part}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        for broker in ordered:
            broker.note("memory", "MB resident, loaded", broker.meter.rss_mb())
            broker.note("memory", "MB resident, peak", broker.meter.peak_mb())


def _warm_up(broker: Broker) -> None:
    topic, bootstrap = broker.topic(), broker.bootstrap
    for acks in ("1", "all"):
        workloads.librdkafka_produce(
            bootstrap, topic, records=WARM_UP_RECORDS, record_bytes=100, acks=acks
        )
    workloads.plain_requests(bootstrap, topic, requests=1000, in_flight=1)
    workloads.librdkafka_consume(bootstrap, topic, records=WARM_UP_RECORDS, record_bytes=100)
    broker.delete(topic)


def commit() -> str:
    """Return the commit that is measured, with a mark if the work tree differs from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", "src")
        return git("rev-parse", "--short=10", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _peers(presets: list[str]) -> dict[str, str]:
    """Return the versions and durability of the servers that take part."""
    return {
        name: "; ".join([version(name), *(f"{x}: {DURABILITY[x][name]}" for x in taken)])
        for name in PROGRAMS
        if (taken := [preset for preset in presets if not why_not(name, preset)])
    }


def write(directory: Path, stem: str, facts: dict[str, Any], results: Results) -> None:
    """Write every value as JSON, and the table beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    data = json.dumps({**facts, **results.as_json()}).replace('{"preset"', '\n{"preset"')
    (directory / f"{stem}.json").write_text(data + "\n")
    (directory / f"{stem}.md").write_text(render(facts, results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round, for a first look")
    parser.add_argument("--rounds", type=int, help="rounds instead of the default")
    parser.add_argument("--preset", choices=tuple(PRESETS), action="append", help="only this one")
    parser.add_argument("--rows", choices=tuple(PARTS), action="append", help="only this part")
    parser.add_argument(
        "--page",
        action="store_true",
        help="write docs/reports/performance.md from the results as well",
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    return parser.parse_args()


def main() -> int:
    """Run the comparison and write its results."""
    arguments = _arguments()
    try:
        kafka_class_path()
    except JavaUnavailableError as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 1
    scale = QUICK if arguments.quick else FULL
    presets = arguments.preset or list(PRESETS)
    parts = [part for part in PARTS if not arguments.rows or part in arguments.rows]
    begun = datetime.now(UTC)
    facts: dict[str, Any] = {
        "date": begun.strftime("%Y-%m-%d"),
        "commit": commit(),
        "kafka": "4.3.0",
        "rounds": arguments.rounds or scale.rounds,
        "machine": machine(),
        "presets": PRESETS,
        "peers": _peers(presets) if PEER_PARTS & set(parts) else {},
    }
    results = Results()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(CLIENT_PROCESSES, mp_context=context) as pool:
        for number, preset in product(range(facts["rounds"]), presets):
            print(f"round {number + 1}, {preset} ...", file=sys.stderr, flush=True)
            try:
                run_round(preset, number, scale=scale, parts=parts, pool=pool, results=results)
            except (*FAILURES, TargetError) as error:  # earlier measurements are kept
                results.fail(f"round {number + 1} of {preset} did not end: {error}"[:300])
                print(f"  {error}", file=sys.stderr, flush=True)
    facts["minutes"] = round((datetime.now(UTC) - begun).total_seconds() / 60, 1)
    print(render(facts, results))
    stem = f"{facts['date']}-{facts['commit']}{'-quick' if arguments.quick else ''}"
    write(arguments.output, stem, facts, results)
    if arguments.page:
        page.PAGE.write(arguments.output / f"{stem}.json")
    print(f"every value: {arguments.output / stem}.json", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
