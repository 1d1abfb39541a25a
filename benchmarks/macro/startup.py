"""Measure the start with thousands of partitions and gigabytes of log, after a clean stop and after SIGKILL.

`python -m benchmarks.macro.startup` fills a directory with real records (nothing sparse), starts the broker on it again
and again, prints a table, writes it to `benchmarks/results`, and removes the directory. It also measures memory, open
files, CPU, and how long one tick blocks the event loop.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from headrace.core.log.upkeep.log_offsets import RECOVERY_FILE
from headrace.errors import ErrorCode
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from tests.conformance.server.wire import WireClient
from tests.fixtures.processes import ServerProcess

RESULTS = Path(__file__).parents[1] / "results"
TOPIC = "many"
BATCH_BYTES = 64_000
REQUEST_BYTES = 16_000_000
PARTITIONS_PER_REQUEST = 200
STOP_TIMEOUT_S = 300


@dataclass(frozen=True)
class Start:
    """The result of one start, with what the process had used when it was ready."""

    case: str
    ready_s: float
    cpu_s: float
    rss_mb: float
    descriptors: int


def batch(size: int) -> bytes:
    """Return a batch of records of one kilobyte that do not compress."""
    now_ms = int(time.time() * 1000)
    count = max(1, size // 1000)
    return build_batch([(None, os.urandom(min(size, 960)), (), now_ms) for _ in range(count)])


def produce(client: WireClient, partitions: Sequence[int], records: bytes) -> None:
    """Append a batch to each partition with one request."""
    data = [PartitionProduceData(index=index, records=records) for index in partitions]
    topics = [TopicProduceData(name=TOPIC, partition_data=data)]
    response = client.request(ProduceRequest(acks=-1, timeout_ms=120_000, topic_data=topics))
    codes = {part.error_code for part in response.responses[0].partition_responses}
    assert codes == {ErrorCode.NONE}, codes


def groups(partitions: int, size: int) -> Iterator[range]:
    """Yield partition numbers in groups of at most `size`."""
    for first in range(0, partitions, size):
        yield range(first, min(first + size, partitions))


def fill(server: ServerProcess, partitions: int, gigabytes: float) -> None:
    """Create the topic, and write `gigabytes` evenly to its partitions."""
    with WireClient((server.host, server.port), 300) as client:
        client.create_topic(TOPIC, partitions)
        small, large = batch(100), batch(BATCH_BYTES)
        began = time.perf_counter()
        for group in groups(partitions, PARTITIONS_PER_REQUEST):
            produce(client, group, small)
        print(f"first records of {partitions} partitions: {time.perf_counter() - began:.2f} s")
        for _ in range(int(gigabytes * 1e9 / len(large) / partitions)):
            for group in groups(partitions, REQUEST_BYTES // len(large)):
                produce(client, group, large)


def start(server: ServerProcess, case: str) -> Start:
    """Start the broker, and read its resources when it is ready."""
    server.start()
    process = psutil.Process(server.pid)
    times = process.cpu_times()
    found = Start(
        case,
        round(server.ready_after_s, 3),
        round(times.user + times.system, 3),
        round(process.memory_info().rss / 1e6, 1),
        process.num_fds(),
    )
    print(f"{case}: ready after {found.ready_s:.2f} s", flush=True)
    return found


def small_files(data: Path) -> dict[Path, bytes]:
    """Return all files but segments and the lock: checkpoints, caches, metadata."""
    return {
        path: path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.suffix not in {".log", ".lock"}
    }


def restore(data: Path, files: dict[Path, bytes]) -> None:
    """Write the small files back as they were."""
    for path in small_files(data):
        if path not in files:
            path.unlink()
    for path, content in files.items():
        path.write_bytes(content)


def measure(directory: Path, partitions: int, gigabytes: float, rounds: int) -> list[Start]:
    """Fill a directory and start the broker on it `rounds` times."""
    data = directory / "data"
    server = ServerProcess(data, log_path=directory / "log")
    starts = [start(server, "empty directory")]
    try:
        fill(server, partitions, gigabytes)
        server.kill()
        killed = small_files(data)
        for _ in range(rounds):
            restore(data, killed)
            starts.append(start(server, "after kill -9 under load"))
            server.kill()
        restore(data, killed)
        (data / RECOVERY_FILE).unlink(missing_ok=True)
        starts.append(start(server, "the same, recovery points lost"))
        server.stop(STOP_TIMEOUT_S)
        for _ in range(rounds):
            starts.append(start(server, "after a clean stop"))
            server.stop(STOP_TIMEOUT_S)
        for _ in range(rounds):
            server.start()
            server.kill()
            starts.append(start(server, "after kill -9, nothing written"))
            with WireClient((server.host, server.port), 300) as client:
                for group in groups(partitions, PARTITIONS_PER_REQUEST):
                    produce(client, group, batch(100))
            server.kill()
            starts.append(start(server, "after kill -9, every partition written"))
            server.stop(STOP_TIMEOUT_S)
    finally:
        server.kill()
    return starts


def table(starts: Sequence[Start]) -> str:
    """Return a table with the medians of each case."""
    lines = [
        "| case | ready, s (least .. most) | CPU, s | RSS, MB | descriptors |",
        "|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(each.case for each in starts):
        mine = sorted((each for each in starts if each.case == case), key=lambda x: x.ready_s)
        middle = mine[len(mine) // 2]
        lines.append(
            f"| {case} | {middle.ready_s:.2f} ({mine[0].ready_s:.2f} .. {mine[-1].ready_s:.2f}) "
            f"| {middle.cpu_s:.2f} | {middle.rss_mb:.0f} | {middle.descriptors} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=2_000)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="20 for the full size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="default: the system's temporary directory")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    directory = Path(tempfile.mkdtemp(prefix="headrace-startup-", dir=arguments.directory))
    try:
        starts = measure(directory, arguments.partitions, arguments.gigabytes, arguments.rounds)
    finally:
        shutil.rmtree(directory)
    text = (
        f"# Starts with {arguments.partitions} partitions, {arguments.gigabytes:g} GB of log\n\n"
        f"{os.cpu_count()} cores, {platform.python_implementation()} {platform.python_version()}, "
        f"load average before: {load_before:.1f}; the files are in the page cache.\n\n"
    ) + table(starts)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    name = f"startup-{time.strftime('%Y%m%d-%H%M%S')}"
    (RESULTS / f"{name}.md").write_text(text)
    facts = {**vars(arguments), "load_before": load_before, "starts": list(map(asdict, starts))}
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
