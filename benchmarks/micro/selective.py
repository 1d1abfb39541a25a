"""Measure the broker CPU of fetches that leave out records (times to live, filters by tag), beside a plain topic.

    python benchmarks/micro/selective.py

Prints microseconds of CPU for each MiB of the log that a consumer passes, the best of several rounds, in memory, with
records of 100 B, a hundred in a batch. The benchmark does not read ranges of files, which the kernel sends without cost
for Python.
"""

from __future__ import annotations

import time

from headrace.core.log import LogConfig, PartitionLog, SelectiveReading
from headrace.records.accel import state
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.directives import directives
from headrace.records.tags import TagFilter
from headrace.storage.memory_files import MemoryFileSystem
from headrace.types import FileRange, Payload, TopicPartition

NOW_MS = 1_700_000_000_000
BATCHES = 800
RECORDS = 100
ROUNDS = 5
FETCH_BYTES = 1 << 20
WHOLE_MS = 10**9


def main() -> None:
    """Measure and print the table."""
    print(f"accelerator: {state}")
    print(f"{'':44} {'none':>10} {'zstd':>10}   us a MiB of the log")
    for name, config, ttl_ms, share, tags in (
        ("a plain topic", LogConfig(), None, 0.01, None),
        ("ttl: nothing expired", LogConfig(expires=True), WHOLE_MS, 0.01, None),
        ("ttl: half of each batch expired", LogConfig(expires=True), 0, 0.01, None),
        ("filter: none wanted", LogConfig(filters=True), None, 0.01, ["nobody"]),
        ("filter: 1 % wanted", LogConfig(filters=True), None, 0.01, ["wanted"]),
        ("filter: 50 % wanted", LogConfig(filters=True), None, 0.5, ["wanted"]),
    ):
        cells = [
            measure(filled(config, codec, ttl_ms, share)[0], tags)
            for codec in (Compression.NONE, Compression.ZSTD)
        ]
        print(f"{name:44} {cells[0]:10.1f} {cells[1]:10.1f}")
    for name, config, ttl_ms in (
        ("append to a plain topic", LogConfig(), WHOLE_MS),
        ("append with ttl, no record has one", LogConfig(expires=True), None),
        ("append with ttl, all records have one", LogConfig(expires=True), WHOLE_MS),
    ):
        cells = [
            filled(config, codec, ttl_ms, 0.01)[1] for codec in (Compression.NONE, Compression.ZSTD)
        ]
        print(f"{name:44} {cells[0]:10.1f} {cells[1]:10.1f}")


def filled(
    config: LogConfig, codec: Compression, ttl_ms: int | None, share: float
) -> tuple[PartitionLog, float]:
    """Return a log with such records, and the cost of appending a MiB of them, in microseconds."""
    every = round(1 / share)
    records = [
        (
            b"key",
            b"x" * 100,
            directives(
                (),
                ttl_ms=ttl_ms if ttl_ms != 0 else (0 if number % 2 else WHOLE_MS),
                tags=["wanted" if number % every == 0 else "other"],
            ),
            NOW_MS,
        )
        for number in range(RECORDS)
    ]
    batch = build_batch(records, compression=codec)
    log = PartitionLog.open(
        MemoryFileSystem(),
        "t-0",
        config,
        topic_partition=TopicPartition("t", 0),
        now_ms=NOW_MS,
        clean=True,
    )
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(BATCHES // ROUNDS):
            log.append(batch, leader_epoch=0, now_ms=NOW_MS)
        best = min(best, time.process_time() - started)
    task = log.start_sync()
    if task is not None:
        task.run()
        log.finish_sync(task)
    log.advance_high_watermark(log.log_end_offset)
    uncompressed = len(build_batch(records)) * (BATCHES // ROUNDS)
    return log, best * 1e6 / (uncompressed / (1 << 20))


def measure(log: PartitionLog, tags: list[str] | None) -> float:
    """Return the cost of reading a log to its end, for each MiB of uncompressed records."""
    wanted = None if tags is None else TagFilter.of(tags)
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        offset = 0
        while offset < log.log_end_offset:
            reading = SelectiveReading(NOW_MS, wanted)
            if not reading.concerns(log.config):
                records: Payload | None = log.read(
                    offset, max_bytes=FETCH_BYTES, up_to=log.log_end_offset, minimum_one=True
                )
            else:
                selected = reading.select(
                    log, offset, max_bytes=FETCH_BYTES, up_to=log.log_end_offset, minimum_one=True
                )
                assert selected is not None
                records = selected.records
                if selected.end_offset >= 0:
                    offset = selected.end_offset
                    continue
            assert isinstance(records, FileRange)
            batches = records.size // (log.size_bytes // BATCHES)
            offset += batches * RECORDS
        best = min(best, time.process_time() - started)
    return best * 1e6 / (UNCOMPRESSED * BATCHES / (1 << 20))


UNCOMPRESSED = RECORDS * 150
"""The approximate size in bytes of a batch without compression."""

if __name__ == "__main__":
    main()
