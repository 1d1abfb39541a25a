"""Measure appends and reads of the partition log per operation, in memory and on disk (page cache, no sync).

    python benchmarks/micro/log.py [--directory DIR] [--profile]

The result is the best of several rounds: the machine is shared, and the minimum is what the code needs.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable

from headrace.core.log import LogConfig, PartitionLog
from headrace.ports import FileSystem
from headrace.records.builder import build_batch
from headrace.records.reader import read_records
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.os_files import OsFileSystem
from headrace.types import TopicPartition

SIZES = {"100 B": 100, "16 KiB": 16 << 10, "1 MiB": (1 << 20) - 100}
ROUNDS = 5


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", help="where files go (default: a temporary directory)")
    parser.add_argument("--profile", action="store_true", help="profile small appends in memory")
    arguments = parser.parse_args()
    if arguments.profile:
        profile()
        return
    print(
        f"{'batch':8} {'files':7} {'append us':>10} {'idempotent':>11} {'read tail':>10}"
        f" {'read any':>9} {'fetch 1 MiB':>12}"
    )
    for name, size in SIZES.items():
        for kind in ("memory", "os"):
            with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                files: FileSystem = (
                    MemoryFileSystem() if kind == "memory" else OsFileSystem(directory)
                )
                cells = measure(files, size)
            print(
                f"{name:8} {kind:7} {cells[0]:10.2f} {cells[1]:11.2f} {cells[2]:10.2f} {cells[3]:9.2f} {cells[4]:12.2f}"
            )
    batch = build_batch([(b"key", b"x" * 100, (), 1)] * 1000)
    print(
        f"read_records: {best(lambda: sum(1 for _ in read_records(batch)), 1) / 1000:.2f} us a record of 100 B"
    )
    print(
        f"build_batch: {best(lambda: build_batch([(b'key', b'x' * 100, (), 1)] * 1000), 1) / 1000:.2f} us a record"
    )


def measure(files: FileSystem, size: int) -> tuple[float, ...]:
    """Return the costs (us) for batches of one record of `size` bytes."""
    count = max(20, min(5000, (32 << 20) // size))
    batch = build_batch([(None, b"x" * size, (), 1_700_000_000_000)])
    log = open_log(files, "plain-0")
    append = best(lambda: append_many(log, batch, count), count)
    idempotent_log = open_log(files, "idempotent-0")
    idempotent = measure_idempotent(idempotent_log, size, count)
    end = log.log_end_offset
    tail = best(lambda: read_many(log, [end - 1] * count), count)
    scattered = [(number * 7919) % end for number in range(count)]
    anywhere = best(lambda: read_many(log, scattered), count)
    fetch = best(lambda: fetch_all(log), max(1, fetch_all(log)))
    return append, idempotent, tail, anywhere, fetch


def open_log(files: FileSystem, directory: str) -> PartitionLog:
    """Open an empty log in a directory."""
    config = LogConfig(max_message_bytes=2 << 20)
    return PartitionLog.open(
        files, directory, config, topic_partition=TopicPartition("t", 0), now_ms=0, clean=True
    )


def append_many(log: PartitionLog, batch: bytes, count: int) -> None:
    """Append one batch `count` times."""
    view = memoryview(batch)
    for _ in range(count):
        log.append(view, leader_epoch=0, now_ms=1_700_000_000_000)


def measure_idempotent(log: PartitionLog, size: int, count: int) -> float:
    """Return the cost (us) of appends with producer state."""
    record = (None, b"x" * size, (), 1_700_000_000_000)
    batches = [
        build_batch([record], producer_id=1, producer_epoch=0, base_sequence=sequence)
        for sequence in range(min(count, 300))
    ]
    started = time.perf_counter()
    for batch in batches:
        log.append(batch, leader_epoch=0, now_ms=1_700_000_000_000)
    return (time.perf_counter() - started) / len(batches) * 1e6


def read_many(log: PartitionLog, offsets: list[int]) -> None:
    """Find the batch at each offset."""
    end = log.log_end_offset
    for offset in offsets:
        log.read(offset, max_bytes=1, up_to=end, minimum_one=True)


def fetch_all(log: PartitionLog) -> int:
    """Read the whole log in ranges of up to 1 MiB; return the number of ranges."""
    offset, end, count = 0, log.log_end_offset, 0
    while offset < end:
        found = log.read(offset, max_bytes=1 << 20, up_to=end, minimum_one=True)
        assert found is not None
        # Each batch has one record, so the next offset follows from the size.
        offset += max(1, round(found.size / (log.size_bytes / end)))
        count += 1
    return count


def best(function: Callable[[], object], operations: int) -> float:
    """Return the cost (us) of an operation in the best round."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times) / operations * 1e6


def profile() -> None:
    """Print a profile of small appends."""
    log = open_log(MemoryFileSystem(), "profiled-0")
    batch = build_batch([(None, b"x" * 100, (), 1_700_000_000_000)])
    profiler = cProfile.Profile()
    profiler.runcall(append_many, log, batch, 50_000)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
