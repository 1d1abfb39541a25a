"""Write the inputs of the loads of `benchmarks.macro.spark`: topics for reads, and Parquet files for writes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.macro.workloads import create_topic
from headrace.clients.blocking import BlockingClient
from headrace.records.builder import build_batch
from headrace.types import TopicPartition

SIZES = (100, 1024, 10_240)
WRITTEN_SIZES = SIZES[:2]
PARTITIONS = (1, 4, 16)
MIDDLE = 4
"""The number of partitions for the comparison of sizes. Numbers of partitions are compared at the smallest size."""
LAYOUTS = (*((size, MIDDLE) for size in SIZES), *((SIZES[0], n) for n in PARTITIONS if n != MIDDLE))
FILES = 8
BATCH_BYTES = 128 << 10
DISTINCT_BATCHES = 32
TEXT_BYTES = 1 << 20


@dataclass(frozen=True)
class Scale:
    """The amount of work of each load."""

    name: str
    read: tuple[int, int, int]
    """Rows of the topics, in the order of `SIZES`."""
    written: tuple[int, int]
    """Rows of the files, in the order of `WRITTEN_SIZES`."""
    latency_s: int
    """The length of a latency measurement, in seconds."""
    plain: tuple[str, ...]
    """The parts that are also measured without the accelerator; all of them read records."""


FULL = Scale(
    "full",
    (3_000_000, 800_000, 80_000),
    (1_000_000, 300_000),
    20,
    ("batch read", "stream read", "archive"),
)
QUICK = Scale("quick", (300_000, 80_000, 8_000), (100_000, 30_000), 5, ("batch read",))


@dataclass(frozen=True)
class Topic:
    """A topic for reads, with its number of rows."""

    name: str
    rows: int


@dataclass(frozen=True)
class Inputs:
    """All inputs of one scale."""

    scale: Scale
    topics: dict[tuple[int, int], Topic]
    """The topic for each value size and number of partitions."""
    files: dict[int, tuple[Path, int]]
    """The directory and its number of rows, for each value size."""


def make_inputs(bootstrap: str, scratch: Path, scale: Scale) -> Inputs:
    """Write topics and files for a scale."""
    rows = dict(zip(SIZES, scale.read, strict=True))
    topics = {
        (size, partitions): _fill(bootstrap, scale.name, size, partitions, rows[size])
        for size, partitions in LAYOUTS
    }
    files = {
        size: (_write(scratch / f"{scale.name}-{size}", size, count), count)
        for size, count in zip(WRITTEN_SIZES, scale.written, strict=True)
    }
    return Inputs(scale, topics, files)


def texts(size: int) -> Iterator[bytes]:
    """Yield texts that compress like logs and events; no two are the same."""
    source = random.Random(size)
    words = ['"carrier":', '"delay":', '"origin":"', "flight ", "departed ", "late ", "{", "},"]
    parts: list[str] = []
    length = 0
    while length < TEXT_BYTES:
        parts.append(source.choice(words) + str(source.randrange(10_000)))
        length += len(parts[-1])
    text = "".join(parts).encode()
    while True:
        start = source.randrange(TEXT_BYTES - size)
        yield text[start : start + size]


def _fill(bootstrap: str, scale: str, size: int, partitions: int, rows: int) -> Topic:
    """Fill a topic. Each partition gets the same number of rows, and a few batches repeat."""
    name = f"input-{scale}-{size}-{partitions}"
    create_topic(bootstrap, name, partitions)
    values, now_ms = texts(size), int(time.time() * 1000)
    each = max(1, BATCH_BYTES // size)

    def batch(count: int) -> bytes:
        records = enumerate(islice(values, count))
        return bytes(build_batch([(b"key %04d" % at, value, (), now_ms) for at, value in records]))

    batches = cycle([batch(each) for _ in range(DISTINCT_BATCHES)])
    share = rows // partitions
    rest = batch(share % each) if share % each else None
    with BlockingClient(bootstrap) as client:
        for partition in range(partitions):
            target = TopicPartition(name, partition)
            for one in islice(batches, share // each):
                client.produce(target, one)
            if rest is not None:
                client.produce(target, rest)
    return Topic(name, share * partitions)


def _write(directory: Path, size: int, rows: int) -> Path:
    directory.mkdir(parents=True)
    values, share = texts(size), rows // FILES
    for number in range(FILES):
        keys = [b"key %09d" % (number * share + at) for at in range(share)]
        table = pa.table({"key": keys, "value": list(islice(values, share))})
        path = directory / f"{number}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False)
    return directory
