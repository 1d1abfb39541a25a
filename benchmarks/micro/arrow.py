"""Measure the conversion of record batches to Arrow, in Python and by the accelerator, and whole reads.

    python -m benchmarks.micro.arrow

Prints thousands of rows per CPU second, the best of several rounds, because other processes disturb. Keys have 8 bytes,
there are no headers, batches are uncompressed and have 64 KiB. The columns are all, or value and offset only. "tuples"
makes a tuple of each record first. "read" is a task of the Spark source, with its thread, from a broker in another
process over TCP: the CPU of this process with the kernel.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.clients.blocking import BlockingClient, NewTopic
from headrace.records.accel import Kernels, kernels, state
from headrace.records.builder import BatchBuilder
from headrace.records.reader import read_records
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.source.arrow import DEFAULT_MAX_ROWS, RangeDecoder
from headrace.spark.source.cluster_client import ClusterClient
from headrace.spark.source.offsets import OffsetRange
from headrace.spark.source.reading import read_ranges
from headrace.spark.source.schema import topic_schema
from headrace.types import TopicPartition
from tests.fixtures.targets import HeadraceServer

ROUNDS = 7
VALUE_SIZES = (100, 1024, 10 << 10)
BYTES = 8 << 20
READ_BYTES = 64 << 20
BATCH_BYTES = 64 << 10
PLACE = TopicPartition("bench", 0)
SCHEMA = topic_schema(include_headers=False)
END = 1 << 62
NARROW = pa.schema([SCHEMA.field("value"), SCHEMA.field("offset")])


def make_batches(value_size: int, size: int, *, produced: bool = False) -> list[bytes]:
    """Return batches of about `size` bytes together, with values of one size, stored or as they are produced."""
    value, made, offset = random.Random(7).randbytes(value_size), [], 0
    for _ in range(size // BATCH_BYTES):
        builder = BatchBuilder(max_bytes=BATCH_BYTES)
        index = offset
        while builder.append(b"key%05d" % index, value, (), 1_700_000_000_000 + 3 * index):
            index += 1
        made.append(builder.build(base_offset=0 if produced else offset))
        offset = index
    return made


def columns(compiled: Kernels | None, schema: Any, fetched: bytes) -> Iterator[Any]:
    """Decode batches as the Spark source does."""
    decoder = RangeDecoder(PLACE, 0, END, schema, compiled=compiled)
    yield from decoder.feed(fetched)
    yield from decoder.finish()


def tuples(fetched: bytes) -> Iterator[Any]:
    """Decode each record to a tuple, and convert the tuples to columns."""
    records = read_records(fetched)
    while part := list(islice(records, DEFAULT_MAX_ROWS)):
        rows = [
            (record.key, record.value, "bench", 0, record.offset, record.timestamp * 1000, 0)
            for record in part
        ]
        turned = zip(*rows, strict=True)
        arrays = [
            pa.array(column, field.type) for column, field in zip(turned, SCHEMA, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def rate(run: Callable[[], Iterator[Any]], count: int) -> str:
    """Return thousands of rows per second of CPU in the fastest round."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        rows = sum(batch.num_rows for batch in run())
        best = min(best, time.process_time() - began)
        assert rows == count
    return f"{count / best / 1000:12,.0f}"


def main() -> None:
    """Measure all conversions and print the tables."""
    print(f"accelerator: {state}")
    print(
        f"{'thousand rows per second of CPU':42}" + "".join(f"{size:>10} B" for size in VALUE_SIZES)
    )
    made = {size: make_batches(size, BYTES) for size in VALUE_SIZES}
    counts = {size: len(list(read_records(b"".join(made[size])))) for size in VALUE_SIZES}
    ways: dict[str, Callable[[bytes], Iterator[Any]]] = {
        "decode: Python": partial(columns, None, SCHEMA),
        "decode: Python, value and offset": partial(columns, None, NARROW),
        "decode: a tuple for each record": tuples,
    }
    if kernels is not None:
        ways["decode: accelerator"] = partial(columns, kernels, SCHEMA)
        ways["decode: accelerator, value and offset"] = partial(columns, kernels, NARROW)
    for name, way in ways.items():
        cells = [rate(partial(way, b"".join(made[size])), counts[size]) for size in VALUE_SIZES]
        print(f"{name:42}" + "".join(cells))
    with a_topic_of_each_size() as (bootstrap, read_counts):
        for compiled in dict.fromkeys((None, kernels)):
            name = "read: Python" if compiled is None else "read: accelerator"
            cells = [
                rate(partial(read, bootstrap, size, read_counts[size], compiled), read_counts[size])
                for size in VALUE_SIZES
            ]
            print(f"{name:42}" + "".join(cells))


@contextmanager
def a_topic_of_each_size() -> Iterator[tuple[str, dict[int, int]]]:
    """Start a broker with a topic for each size; yield its address and the number of records in each topic."""
    with tempfile.TemporaryDirectory() as directory:
        server = HeadraceServer(Path(directory))
        server.start()
        try:
            counts = {}
            with BlockingClient(server.bootstrap) as client:
                for size in VALUE_SIZES:
                    client.create_topics([NewTopic(f"bench-{size}", 1)])
                    for batch in make_batches(size, READ_BYTES, produced=True):
                        client.produce(TopicPartition(f"bench-{size}", 0), batch)
                    place = TopicPartition(f"bench-{size}", 0)
                    counts[size] = client.list_offsets({place: -1})[place].offset
            yield server.bootstrap, counts
        finally:
            server.stop()


def read(bootstrap: str, size: int, count: int, compiled: Kernels | None) -> Iterator[Any]:
    """Read a topic as a task of the Spark source does."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": f"bench-{size}"}
    options: SourceOptions = source_options(given, streaming=False)
    client = ClusterClient(options.client)
    wanted = OffsetRange(TopicPartition(f"bench-{size}", 0), 0, count)
    try:
        yield from read_ranges(client, [wanted], options, compiled=compiled)
    finally:
        client.close()


if __name__ == "__main__":
    main()
