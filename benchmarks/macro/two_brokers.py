"""Measure the gain of a second broker process on one machine: the most that worker processes could bring.

    python -m benchmarks.macro.two_brokers [--rounds N] [--seconds S] [--rows TEXT]

Two clients, each in its own process with its own topic, put the same load on one broker for both, and on two brokers,
one for each. The two brokers share nothing, so no arrangement of worker processes behind one port can be faster.
Everything is measured with asyncio's event loop and with uvloop. Clients share the cores with the brokers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.macro import workloads
from benchmarks.macro.compare_kafka import RESULTS, commit
from benchmarks.macro.report import number
from benchmarks.macro.servers import Meter, machine, produce_frame
from benchmarks.micro.server import Case, Generator, fetch_request
from tests.fixtures.targets import HeadraceServer

LOOPS = ("uvloop", "asyncio")
CLIENTS = 2
FETCHED_BYTES = 1 << 20


@dataclass(frozen=True)
class Load:
    """A load of one client: a function of address, topic and seconds that returns a rate and a count."""

    name: str
    unit: str
    run: Callable[[str, str, float], tuple[float, int]]
    fill: int = 0  # the number of records of 1 KiB in the topic before the load


def _raw(
    address: str, topic: str, seconds: float, *, payload: int, connections: int, outstanding: int
) -> tuple[float, int]:
    """Send requests as fast as they are answered; a payload of 0 means Fetch."""
    request = produce_frame(topic, 0, payload) if payload else fetch_request(topic, FETCHED_BYTES)
    host, port = address.rsplit(":", 1)
    case = Case("", request, connections, outstanding, payload, seconds)
    generator = Generator(case, (host, int(port)))
    responses, elapsed = generator.run(seconds)
    generator.close()
    return responses / elapsed, responses


def _librdkafka(
    address: str, topic: str, seconds: float, *, load: Callable[..., Any], records_per_s: int
) -> tuple[float, int]:
    """Produce with librdkafka as many records as take about `seconds`."""
    records = int(records_per_s * seconds)
    run = load(address, topic, records=records, record_bytes=1024)
    return run.records_per_s, records


_produce = partial(workloads.librdkafka_produce, acks="all")
LOADS = (
    Load(
        "produce 1 record, 1 connection, 1 in flight",
        "requests",
        partial(_raw, payload=100, connections=1, outstanding=1),
    ),
    Load(
        "produce 1 record, 25 connections, 1 in flight",
        "requests",
        partial(_raw, payload=100, connections=25, outstanding=1),
    ),
    Load(
        "produce 1 record, 1 connection, 64 in flight",
        "requests",
        partial(_raw, payload=100, connections=1, outstanding=64),
    ),
    Load(
        "produce 16 KiB, 1 connection, 32 in flight",
        "requests",
        partial(_raw, payload=16 << 10, connections=1, outstanding=32),
    ),
    Load(
        "produce 1 MB, 1 connection, 4 in flight",
        "requests",
        partial(_raw, payload=1_000_000, connections=1, outstanding=4),
    ),
    Load(
        "fetch 1 MiB, 1 connection, 4 in flight",
        "requests",
        partial(_raw, payload=0, connections=1, outstanding=4),
        fill=2_000,
    ),
    Load(
        "produce 1 KiB, librdkafka",
        "records",
        partial(_librdkafka, load=_produce, records_per_s=150_000),
    ),
    Load(
        "consume 1 KiB, librdkafka",
        "records",
        partial(_librdkafka, load=workloads.librdkafka_consume, records_per_s=200_000),
        fill=400_000,
    ),
)


@contextmanager
def brokers(count: int, loop: str, durability: str) -> Iterator[list[HeadraceServer]]:
    """Run the given number of brokers, each with its own directory."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        servers = []
        for number_ in range(count):
            options = ["--durability", durability, "--loop", loop]
            server = HeadraceServer(scratch / str(number_), settings={}, arguments=options)
            stack.callback(server.stop)
            server.start()
            servers.append(server)
        yield servers


def measure(
    load: Load, servers: Sequence[HeadraceServer], pool: ProcessPoolExecutor, seconds: float
) -> tuple[float, float]:
    """Run both clients at once; return the sum of their rates, and broker CPU in microseconds per request or record."""
    places = []
    for client in range(CLIENTS):
        address = servers[client % len(servers)].bootstrap
        topic = f"client-{client}-{time.monotonic_ns()}"
        partitions = workloads.PARTITIONS if load.unit == "records" else 1
        workloads.create_topic(address, topic, partitions)
        if load.fill:
            records = int(load.fill * (seconds if load.unit == "records" else 1))
            workloads.librdkafka_produce(
                address,
                topic,
                records=records,
                record_bytes=1024,
                acks="all",
                partitions=partitions,
            )
        places.append((address, topic))
    meters = [Meter(server.pid) for server in servers]
    running = [pool.submit(load.run, *place, seconds) for place in places]
    outcomes = [each.result() for each in running]
    cpu_s = sum(meter.cost().cpu_s for meter in meters)
    for address, topic in places:
        workloads.delete_topic(address, topic)
    return sum(rate for rate, _ in outcomes), cpu_s / sum(count for _, count in outcomes) * 1e6


Values = dict[str, list[float]]


def run(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, Values]]]:
    """Run all loads; return rates and CPU of each round, by load, event loop and number of brokers."""
    found: dict[str, dict[str, dict[str, Values]]] = {}
    context = multiprocessing.get_context("spawn")
    chosen = [load for load in LOADS if arguments.rows in load.name]
    turns = [(loop, count) for loop in LOOPS for count in (1, 2)]
    with ProcessPoolExecutor(CLIENTS, mp_context=context) as pool:
        for number_ in range(arguments.rounds):
            for loop, count in turns if number_ % 2 == 0 else turns[::-1]:
                print(
                    f"round {number_ + 1}, {count} broker(s), {loop}", file=sys.stderr, flush=True
                )
                with brokers(count, loop, arguments.durability) as servers:
                    for load in chosen:
                        measure(load, servers, pool, 0.2)
                        rate, cpu = measure(load, servers, pool, arguments.seconds)
                        by_loop = found.setdefault(load.name, {}).setdefault(loop, {})
                        values = by_loop.setdefault(str(count), {"rate": [], "cpu_us": []})
                        values["rate"].append(rate)
                        values["cpu_us"].append(cpu)
    return found


def _spread(values: Sequence[float]) -> str:
    return f"{number(median(values))} ({number(min(values))} .. {number(max(values))})"


def render(facts: dict[str, Any]) -> str:
    """Return the report as Markdown text."""
    host = facts["machine"]
    lines = [
        f"# One broker and two on one machine, Headrace {facts['commit']}, {facts['date']}",
        "",
        (
            f"{host['cores']} cores ({host['cpu']}), {host['python']}, durability {facts['durability']};"
            f" {facts['rounds']} round(s), load average before: {', '.join(map(str, host['load_before']))}."
        ),
        (
            f"{CLIENTS} clients in processes of their own, on the same cores. Rates: both clients together, a second;"
            " median (least .. most). CPU: of the brokers, microseconds for each request or record."
        ),
        "",
        "| load | loop | one broker | two brokers | ratio | CPU: one | two |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, by_loop in facts["values"].items():
        for loop, counts in by_loop.items():
            one, two = counts["1"], counts["2"]
            ratio = median(two["rate"]) / median(one["rate"])
            cells = [name, loop, _spread(one["rate"]), _spread(two["rate"]), f"{ratio:.2f}"]
            cells += [number(median(each["cpu_us"])) for each in (one, two)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the measurement and write its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    parser.add_argument("--rows", default="", help="only loads with this text in their name")
    parser.add_argument("--durability", choices=("os", "fsync"), default="os")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    arguments = parser.parse_args()
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "durability": arguments.durability,
        "rounds": arguments.rounds,
        "machine": machine(),
    }
    facts["values"] = run(arguments)
    text = render(facts)
    print(text)
    stem = f"two-brokers-{arguments.durability}-{facts['date']}-{facts['commit']}"
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / f"{stem}.json").write_text(json.dumps(facts) + "\n")
    (arguments.output / f"{stem}.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
