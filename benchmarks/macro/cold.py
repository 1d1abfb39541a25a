"""Read a topic from the disk: its files are synced and dropped from the page cache before."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import Executor
from pathlib import Path

from benchmarks.macro.latency import Window
from benchmarks.macro.workloads import Run, librdkafka_consume

PROBES = 64  # positions of a file that are checked
START_AFTER_S = 1.3  # the sender's lead, and one second in which the other consumers warm up


def drop_from_cache(data: Path, topic: str) -> float:
    """Drop the logs of a topic from the page cache; return the fraction that is still there."""
    paths = [path for each in data.glob(f"{topic}-*") for path in each.glob("*.log")]
    if not hasattr(os, "posix_fadvise"):
        return 1.0
    _drop(paths)
    shares = [_share_cached(path) for path in paths if path.stat().st_size]
    _drop(paths)  # the check may have started a read-ahead
    return sum(shares) / len(shares) if shares else 1.0


def _drop(paths: list[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _share_cached(path: Path) -> float:
    descriptor = os.open(path, os.O_RDONLY)
    size, present = os.fstat(descriptor).st_size, 0
    try:
        for number in range(PROBES):
            # Fails with EAGAIN, and does not read, if the page is not in memory.
            try:
                os.preadv(descriptor, [bytearray(1)], size * number // PROBES, os.RWF_NOWAIT)
                present += 1
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    raise
    finally:
        os.close(descriptor)
    return present / PROBES


def _timed(bootstrap: str, topic: str, records: int, record_bytes: int) -> tuple[Run, Window]:
    begin = time.monotonic_ns()
    run = librdkafka_consume(bootstrap, topic, records=records, record_bytes=record_bytes)
    return run, Window(begin, time.monotonic_ns())


class CatchUp:
    """A consumer in its own process that reads a topic from its start while others read the end of another topic."""

    def __init__(
        self, pool: Executor, bootstrap: str, topic: str, records: int, record_bytes: int
    ) -> None:
        self._pool = pool
        self._arguments = (bootstrap, topic, records, record_bytes)
        self.run = Run(0.0)

    def __call__(self) -> Window:
        """Read the whole topic while the other consumers run; return the time in which both read."""
        time.sleep(START_AFTER_S)
        self.run, window = self._pool.submit(_timed, *self._arguments).result()
        return window
