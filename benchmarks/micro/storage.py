"""Compare the storages of a topic: appends and reads of the partition log over each, and memory.

    python benchmarks/micro/storage.py [--directory DIR]

The result is the best of several rounds, because the machine is shared. `own` is the list of batches of
docs/guides/embedded.md with an index of where they begin. Files are written to the page cache, without a sync.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from headrace.core.log import LogConfig, PartitionLog
from headrace.ports import FileSystem
from headrace.records.builder import build_batch
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.os_files import OsFileSystem
from headrace.storage.segment_files import ArraySegment, StorageFileSystem
from headrace.types import Buffer, TopicPartition

SIZES = {"100 B": 100, "16 KiB": 16 << 10, "1 MiB": (1 << 20) - 100}
ROUNDS = 5
TOTAL = 32 << 20
SEGMENT = 16 << 20
NOW_MS = 1_700_000_000_000


class ListSegment:
    """A storage of this program: a list of batches."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._starts: list[int] = []
        self._size = 0

    @property
    def size(self) -> int:
        """The size of the segment in bytes."""
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers as one batch."""
        batch = b"".join(buffers)
        self._batches.append(batch)
        self._starts.append(self._size)
        self._size += len(batch)

    def read(self, position: int, size: int) -> Buffer:
        """Return up to `size` bytes from a byte position."""
        first = max(0, bisect_right(self._starts, position) - 1)
        last = bisect_right(self._starts, position + size - 1)
        skipped = position - self._starts[first] if self._starts else 0
        return b"".join(self._batches[first:last])[skipped : skipped + size]

    def truncate(self, size: int) -> None:
        """Keep only the first `size` bytes."""
        kept = bytes(self.read(0, size))
        self._batches, self._starts, self._size = [kept], [0], len(kept)

    def roll(self) -> ListSegment:
        """Return the storage of the next segment."""
        return ListSegment()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", help="where files go (default: a temporary directory)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        rooms: dict[str, Callable[[str], FileSystem]] = {
            "array": lambda _: StorageFileSystem("array", ArraySegment),
            "linked": lambda _: MemoryFileSystem(),
            "own": lambda _: StorageFileSystem("own", ListSegment),
            "files": lambda name: OsFileSystem(f"{directory}/{name}"),
        }
        print(
            f"{'batch':8} {'storage':8} {'append us':>10} {'MB/s':>7} {'read tail us':>13} {'read any us':>12}"
            f" {'1 MiB us':>9} {'memory':>7}"
        )
        for label, size in SIZES.items():
            for name, room in rooms.items():
                cells = measure(room, f"{name}-{size}", size)
                print(
                    f"{label:8} {name:8} {cells[0]:10.2f} {size / cells[0]:7.0f} {cells[1]:13.2f} {cells[2]:12.2f}"
                    f" {cells[3]:9.1f} {cells[4]:6.2f}x"
                )


def measure(room: Callable[[str], FileSystem], name: str, size: int) -> tuple[float, ...]:
    """Return the costs (us) with batches of one record of `size` bytes, and the memory per stored byte."""
    count = max(20, min(5000, TOTAL // size))
    batch = build_batch([(None, b"x" * size, (), NOW_MS)])
    logs = [open_log(room(f"{name}-{number}")) for number in range(ROUNDS)]
    append = best([partial(fill, log, batch, count) for log in logs], count)
    log = logs[0]
    tail = best([lambda: look(log, [count - 1] * count)] * ROUNDS, count)
    scattered = [(number * 7919) % count for number in range(count)]
    anywhere = best([lambda: look(log, scattered)] * ROUNDS, count)
    parts = fetch(log)
    whole = best([lambda: fetch(log)] * ROUNDS, parts)
    tracemalloc.start()
    kept = open_log(room(f"{name}-memory"))
    fill(kept, batch, count)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return append, tail, anywhere, whole, taken / kept.size_bytes


def open_log(files: FileSystem) -> PartitionLog:
    """Open an empty log in a directory."""
    return PartitionLog.open(
        files,
        "t-0",
        LogConfig(max_message_bytes=2 << 20, segment_bytes=SEGMENT),
        topic_partition=TopicPartition("t", 0),
        now_ms=0,
        clean=True,
    )


def fill(log: PartitionLog, batch: bytes, count: int) -> None:
    """Append one batch `count` times."""
    view = memoryview(batch)
    for _ in range(count):
        log.append(view, leader_epoch=0, now_ms=NOW_MS)


def look(log: PartitionLog, offsets: Sequence[int]) -> None:
    """Read one batch at each offset."""
    end = log.log_end_offset
    for offset in offsets:
        found = log.read(offset, max_bytes=1, up_to=end, minimum_one=True)
        assert found is not None
        found.read()


def fetch(log: PartitionLog) -> int:
    """Read the whole log as a consumer does, in ranges of up to 1 MiB; return the number of ranges."""
    offset, end, count = 0, log.log_end_offset, 0
    each = log.size_bytes // end
    while offset < end:
        found = log.read(offset, max_bytes=1 << 20, up_to=end, minimum_one=True)
        assert found is not None
        sum(map(len, found.file.buffers(found.position, found.size)))
        offset += max(1, found.size // each)
        count += 1
    return count


def best(functions: Sequence[Callable[[], object]], operations: int) -> float:
    """Return the cost (us) of an operation in the best round."""
    times = []
    for function in functions:
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times) / operations * 1e6


if __name__ == "__main__":
    main()
