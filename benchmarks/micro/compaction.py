"""Measure the compaction of a log on disk: MB/s and records/s read, and the longest step.

    python benchmarks/micro/compaction.py [--megabytes 64] [--directory DIR]

Each key is written four times, so a round removes three quarters of the records.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time

from headrace.core.log import LogConfig, PartitionLog
from headrace.core.log.cleaning.cleanable import plan_compaction
from headrace.core.log.cleaning.compaction import Compaction
from headrace.core.log.segments.replacement import install
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.storage.os_files import OsFileSystem
from headrace.types import TopicPartition

NOW_MS = 1_700_000_000_000
RECORDS_PER_BATCH = 100


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--directory", help="where files go (default: a temporary directory)")
    arguments = parser.parse_args()
    print(
        f"{'records':22} {'MB/s':>7} {'records/s':>10} {'longest step':>13} {'on the loop':>12} {'kept':>6}"
    )
    for size in (100, 1000):
        for codec in (Compression.NONE, Compression.LZ4, Compression.ZSTD):
            with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                measure(directory, size, codec, arguments.megabytes << 20)


def measure(directory: str, size: int, codec: Compression, wanted_bytes: int) -> None:
    """Fill a log, compact it, and print a row."""
    files = OsFileSystem(directory)
    config = LogConfig(compacts=True, segment_bytes=32 << 20, retention_ms=-1)
    log = PartitionLog.open(
        files, "t-0", config, topic_partition=TopicPartition("t", 0), now_ms=NOW_MS, clean=True
    )
    fill(log, size, codec, wanted_bytes)
    plan = plan_compaction(log, 0, NOW_MS)
    assert plan is not None
    task = Compaction(files, plan, now_ms=NOW_MS, max_keys=1 << 30)
    longest = longest_install = 0.0
    began = time.perf_counter()
    while not task.finished:
        step_began = time.perf_counter()
        task.run()
        longest = max(longest, time.perf_counter() - step_began)
        if task.replacement is not None:
            step_began = time.perf_counter()
            install(files, log.segments, task.replacement, interval=4096)
            task.replacement = None
            longest_install = max(longest_install, time.perf_counter() - step_began)
    took = time.perf_counter() - began
    stats = task.stats
    print(
        f"{size:5} B, {codec.name:12} {stats.bytes_before / took / 1e6:8.1f} {stats.records_before / took:10,.0f} "
        f"{longest * 1000:10.1f} ms {longest_install * 1000:9.1f} ms {stats.records_after / stats.records_before:6.0%}"
    )


def fill(log: PartitionLog, size: int, codec: Compression, wanted_bytes: int) -> None:
    """Append until the uncompressed records have `wanted_bytes`; every key is appended four times."""
    chance = random.Random(1)
    count = wanted_bytes // size
    value = chance.randbytes(size // 2).hex().encode()[: size - 20]
    for start in range(0, count, RECORDS_PER_BATCH):
        records = [
            (b"key-%09d" % chance.randrange(count // 4), value, (), NOW_MS)
            for _ in range(start, start + RECORDS_PER_BATCH)
        ]
        log.append(build_batch(records, compression=codec), leader_epoch=0, now_ms=NOW_MS)
    log.roll(NOW_MS)
    task = log.start_sync()
    assert task is not None
    task.run()
    log.finish_sync(task)
    log.advance_high_watermark(log.log_end_offset)


if __name__ == "__main__":
    main()
