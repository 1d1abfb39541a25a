"""Compare Headrace's Python clients and workers with others, in one run on one Headrace broker.

    python -m benchmarks.macro.clients [--quick] [--rounds N] [--rows TEXT] [--peers PYTHON] [--accel] [--page]

Each load runs in its own process. The order of the clients changes with each round. The result is a table of medians
with minimum and maximum, and a JSON file with every value. `--page` also writes the tables of
docs/reports/client-performance.md. PYTHON is the interpreter of an environment with FastStream and Quix Streams, which
the project itself does not need. Headrace's clients are measured without the accelerator; with `--accel` also with it,
in separate rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.macro import client_loads, client_page, worker_loads
from benchmarks.macro.client_loads import (
    AIO,
    BLOCKING,
    HEADRACE,
    HEADRACE_MANY,
    TIMEOUT_S,
    Cost,
)
from benchmarks.macro.compare_kafka import RESULTS, ROOT
from benchmarks.macro.latency import WARM_UP_NS, percentiles
from benchmarks.macro.report import Results, Row
from benchmarks.macro.runs import Run
from benchmarks.macro.servers import Meter, make_server
from benchmarks.macro.workloads import create_topic, delete_topic, librdkafka_produce

CLIENTS = (*BLOCKING, *AIO)
ACCELERATED = " + accel"
"""The suffix of the name of a Headrace client that runs with the accelerator."""
SIZES = {"100 B": 100, "1 KiB": 1024}
IN_PROCESS_BATCH = 500
LATENCY_RATE = 1_000
WORKER_TIMEOUT_S = 60
CPU = "CPU of the client, us/record"


@dataclass(frozen=True)
class Scale:
    """The amount of work of each load."""

    rounds: int = 3
    seconds: float = 2.0
    latency_s: float = 3.0
    records: Mapping[str, int] = field(default_factory=lambda: {"100 B": 600_000, "1 KiB": 200_000})
    worker_records: int = 100_000
    accel: bool = False
    """Whether Headrace's clients are also measured with the accelerator."""

    def with_accelerator(self, names: Sequence[str]) -> list[str]:
        """Return the names; if the accelerator is measured, also those of Headrace with the accelerator."""
        mine = [name + ACCELERATED for name in names if name.startswith(HEADRACE)]
        return [*names, *(mine if self.accel else ())]


QUICK = Scale(1, 0.5, 2.0, {"100 B": 100_000, "1 KiB": 50_000}, 10_000)


class Bench:
    """One run of all loads on one broker."""

    def __init__(self, bootstrap: str, meter: Meter, scale: Scale, rows: str) -> None:
        self.bootstrap, self.scale, self.results = bootstrap, scale, Results()
        self.versions: dict[str, str] = {}
        self._meter, self._rows = meter, rows
        self._names = count()

    def wanted(self, case: str) -> bool:
        """Return whether the case is part of the run."""
        return self._rows in case

    @contextmanager
    def topic(self) -> Iterator[str]:
        """Create a topic for the length of a block."""
        name = f"bench-{next(self._names)}"
        create_topic(self.bootstrap, name)
        yield name
        delete_topic(self.bootstrap, name)

    @contextmanager
    def guarded(self, case: str, who: str) -> Iterator[None]:
        """Record a load that fails as a note in its row, and continue the run."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever another's client raises
            self.results.fail(f"{case}, {who}: {error!r}"[:300])

    def note(self, case: str, who: str, **values: float) -> None:
        """Store values by the names of their metrics."""
        for metric, value in values.items():
            self.results.note(Row("os", case, metric), who, value)

    def note_cost(self, case: str, who: str, cost: Cost) -> None:
        """Store the cost of a load."""
        metrics = {"records/s": cost.records / cost.wall_s, CPU: cost.cpu_s / cost.records * 1e6}
        self.note(case, who, **metrics)

    def load(self, case: str, client: str, function: str, *arguments: Any) -> None:
        """Run one load in its own process."""
        with self.guarded(case, client):
            self._meter.reset()
            cost = Cost(**finish(start(client, function, self.bootstrap, *arguments)))
            self.note_cost(case, client, cost)
            broker_us = self._meter.cost().cpu_s / cost.records * 1e6
            memory = {"broker CPU, us/record": broker_us, "MB resident at most": cost.peak_mb}
            self.note(case, client, **memory)

    # The parts

    def throughput(self, size: str, turn: int) -> None:
        """Measure produce and consume at full speed."""
        case = f"produce {size}"
        producers = self.scale.with_accelerator((*CLIENTS, HEADRACE_MANY))
        for client in turned(producers, turn) if self.wanted(case) else ():
            with self.topic() as topic:
                self.load(case, client, "produce", topic, SIZES[size], self.scale.seconds)
        case, records = f"consume {size}", self.scale.records[size]
        if self.wanted(case):
            with self.topic() as topic:
                self._fill(topic, records, SIZES[size])
                for client in turned(self.scale.with_accelerator(CLIENTS), turn):
                    self.load(case, client, "consume", topic, records, self.scale.seconds)

    def _fill(self, topic: str, records: int, record_bytes: int) -> None:
        librdkafka_produce(
            self.bootstrap, topic, records=records, record_bytes=record_bytes, acks="all", chunk=500
        )

    def latency(self, turn: int) -> None:
        """Measure the latency of a record from the time when it was due until a consumer has it."""
        case = f"end to end, {LATENCY_RATE:,} records/s of 100 B"
        clients = self.scale.with_accelerator(CLIENTS)
        for client in turned(clients, turn) if self.wanted(case) else ():
            with self.guarded(case, client), self.topic() as topic:
                self.note(case, client, **self._latency(client, topic))

    def _latency(self, client: str, topic: str) -> dict[str, float]:
        records = int(LATENCY_RATE * self.scale.latency_s)
        receiving = start(client, "receive_paced", self.bootstrap, topic, records)
        sending = start(client, "send_paced", self.bootstrap, topic, LATENCY_RATE, records)
        first, timed = finish(sending), finish(receiving)
        if len(timed) != records:
            raise RuntimeError(f"{records - len(timed)} of {records} records did not come")
        counted = (latency for due, latency in timed if due >= first + WARM_UP_NS)
        found = percentiles(sorted(counted))
        return {name: found[name] for name in ("p50 ms", "p99 ms")}

    def in_process(self, size: str) -> None:
        """Measure producer, broker and consumer in one process on one core."""
        case = f"in process, batches of {IN_PROCESS_BATCH}, {size}"
        names = self.scale.with_accelerator((HEADRACE, HEADRACE_MANY)) if self.wanted(case) else ()
        for name in names:
            with self.guarded(case, name):
                load = start(name, "in_process", SIZES[size], self.scale.seconds, IN_PROCESS_BATCH)
                self.note_cost(case, name, Cost(**finish(load)))

    def workers(self, turn: int, peers: str | None) -> None:
        """Measure workers whose handler does nothing."""
        case = "worker, 100 B, a handler that does nothing"
        if not self.wanted(case):
            return
        others = (worker_loads.FASTSTREAM, worker_loads.QUIX) if peers else ()
        names = (*self.scale.with_accelerator([worker_loads.HEADRACE]), *others)
        for name in turned(names, turn):
            python = str(peers) if name in others else sys.executable
            with self.guarded(case, name), self.topic() as topic:
                self._fill(topic, self.scale.worker_records, 100)
                found = self._work(python, name, topic)
                program_version = found.pop("version")
                if name in others:
                    self.versions[name] = program_version
                self.note_cost(case, name, Cost(**found, peak_mb=0.0))

    def _work(self, python: str, name: str, topic: str) -> dict[str, Any]:
        program = name.removesuffix(ACCELERATED)
        command = [python, worker_loads.__file__, program, self.bootstrap, topic]
        command += [str(self.scale.worker_records), str(2 * self.scale.seconds)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=WORKER_TIMEOUT_S,
            check=False,
            env=environment(name),
        )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def start(client: str, function: str, *arguments: Any) -> subprocess.Popen[str]:
    """Start a function of `client_loads` in its own process, with or without the accelerator."""
    load = json.dumps([function, client.removesuffix(ACCELERATED), *arguments])
    return subprocess.Popen(
        [sys.executable, "-m", client_loads.__name__, load],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(client),
    )


def environment(client: str) -> dict[str, str]:
    """Return the environment variables of a client, which enable or disable the accelerator."""
    return {**os.environ, "HEADRACE_ACCEL": str(int(client.endswith(ACCELERATED)))}


def finish(process: subprocess.Popen[str]) -> Any:
    """Return the result of a function that runs in another process.

    Raises:
        RuntimeError: The function failed.
    """
    try:
        output, complaint = process.communicate(timeout=2 * TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError((complaint.strip().splitlines() or ["no reason given"])[-1])
    return json.loads(output.strip().splitlines()[-1])


def accelerator() -> bool:
    """Return whether the accelerator is installed."""
    return find_spec("headrace_accel") is not None


def turned(names: Sequence[str], turn: int) -> list[str]:
    """Return the names in an order that changes with each turn."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def measure(scale: Scale, rows: str, peers: str | None) -> tuple[Results, dict[str, str]]:
    """Run all rounds on one broker."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory,
    ):
        server = make_server("headrace", "os", Path(directory) / "broker")
        server.start()
        try:
            bench = Bench(server.bootstrap, Meter(server.pid), scale, rows)
            for turn in range(scale.rounds):
                begun = time.monotonic()
                for size in SIZES:
                    bench.throughput(size, turn)
                    bench.in_process(size)
                bench.latency(turn)
                bench.workers(turn, peers)
                print(f"round {turn + 1}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        finally:
            server.stop()
    return bench.results, bench.versions


def main() -> int:
    """Run the comparison and write its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round, for a first look")
    parser.add_argument("--rounds", type=int, help="rounds instead of the default")
    parser.add_argument("--rows", default="", help="only cases with this text in their name")
    parser.add_argument("--peers", help="a Python that has FastStream and Quix Streams")
    parser.add_argument("--accel", action="store_true", help="the accelerator in rows of its own")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--page", action="store_true", help="write the page's tables too")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else Scale()
    if arguments.rounds:
        scale = Scale(**{**vars(scale), "rounds": arguments.rounds})
    if arguments.accel:
        scale = Scale(**{**vars(scale), "accel": True})
        if not accelerator():
            parser.error("the accelerator is not installed: run pip install ./accel first")
    run = Run.begin(scale.rounds)
    results, versions = measure(scale, arguments.rows, arguments.peers)
    theirs = {name: version(name) for name in CLIENTS if not name.startswith("headrace")}
    run.facts["versions"] = {**theirs, **versions, "headrace": run.facts["commit"]}
    page = client_page.PAGE if arguments.page else None
    run.end("clients", results, client_page.SHOWN, arguments.output, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
