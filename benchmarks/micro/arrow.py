"""Three ways from a record batch to Arrow: row tuples, column lists (`headrace.spark.source.arrow`), gathered offsets.

Run it: `python -m benchmarks.micro.arrow`. Prints microseconds of CPU per record, of the best of several rounds, for
other processes disturb. Keys of 8 bytes, no headers, 20,000 records in one uncompressed batch.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.records.builder import build_batch
from headrace.records.reader import read_records
from headrace.records.varint import decode_varint
from headrace.spark.source.arrow import RangeDecoder
from headrace.spark.source.schema import topic_schema
from headrace.types import TopicPartition

RECORDS = 20_000
ROUNDS = 7
VALUE_SIZES = (20, 100, 1024)
TOPIC_PARTITION = TopicPartition("bench", 0)


def make_batch(value_size: int) -> bytes:
    """Return one batch; timestamps step by 3 ms."""
    noise = random.Random(7)
    return build_batch(
        (b"key%05d" % index, noise.randbytes(value_size), (), 1_700_000_000_000 + 3 * index)
        for index in range(RECORDS)
    )


def column_lists(batch: bytes) -> Any:
    """Decode as the source does."""
    decoder = RangeDecoder(
        TOPIC_PARTITION,
        0,
        RECORDS,
        topic_schema(include_headers=False),
        max_rows=RECORDS,
        max_bytes=1 << 30,
    )
    (result,) = [*decoder.feed(batch), *decoder.finish()]
    return result


def row_tuples(batch: bytes) -> Any:
    """Decode to `Record` tuples and turn them by columns."""
    rows = [
        (record.key, record.value, "bench", 0, record.offset, record.timestamp * 1000, 0)
        for record in read_records(batch)
    ]
    schema = topic_schema(include_headers=False)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def gathered_offsets(batch: bytes) -> Any:
    """Collect where keys and values lie and let Arrow gather them (no null keys or values)."""
    header = BatchHeader.parse(batch)
    section = batch[HEADER_SIZE:]
    bounds: list[int] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    position = 0
    for _ in range(header.records_count):
        byte = section[position]
        if byte < 0x80:
            length, position = byte >> 1, position + 1
        else:
            length, position = decode_varint(section, position)
        end = position + length
        delta, position = decode_varint(section, position + 1, 10)
        timestamps.append((header.base_timestamp + delta) * 1000)
        delta, position = decode_varint(section, position)
        offsets.append(header.base_offset + delta)
        key_length, key = decode_varint(section, position)
        value_length, value = decode_varint(section, key + key_length)
        bounds.extend((key, key + key_length, value, value + value_length))
        position = end
    count = header.records_count
    whole = pa.Array.from_buffers(
        pa.binary(), 4 * count - 1, [None, pa.py_buffer(array("i", bounds)), pa.py_buffer(section)]
    )
    arrays = [
        whole.take(pa.array(range(0, 4 * count, 4), pa.int32())),
        whole.take(pa.array(range(2, 4 * count, 4), pa.int32())),
        pa.repeat(pa.scalar("bench", pa.string()), count),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(timestamps, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.repeat(pa.scalar(0, pa.int32()), count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=topic_schema(include_headers=False))


def best_us(decode: Callable[[bytes], Any], batch: bytes) -> float:
    """Return the CPU microseconds per record of the fastest round."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        decode(batch)
        best = min(best, time.process_time() - began)
    return best / RECORDS * 1e6


def main() -> None:
    """Print a line per value size and way."""
    ways = (row_tuples, column_lists, gathered_offsets)
    for size in VALUE_SIZES:
        batch = make_batch(size)
        expected = row_tuples(batch)
        for way in ways:
            assert way(batch).equals(expected), way.__name__
            print(f"{size:>5} B values  {way.__name__:<18} {best_us(way, batch):.2f} us/record")


if __name__ == "__main__":
    main()
