"""Measure writes of Arrow columns to topics: by the Spark sink, by a `send` for each row, and by `send_many`.

    python -m benchmarks.micro.rows [VALUE_SIZE]

Prints microseconds of CPU per row, the best of several rounds: keys of 8 bytes, eight partitions, batches of 256 KiB.
The broker is in this process, and its CPU is included.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pyarrow as pa

import headrace
from headrace.records.accel import state
from headrace.spark.sink.columns import rows_by_topic
from headrace.spark.sink.producer import RowProducer

ROUNDS = 3
ROWS = 200_000
IN_A_BATCH = 10_000
"""The number of rows in a batch that Spark passes to the sink."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def one_by_one(batch: pa.RecordBatch, producer: RowProducer) -> None:
    """Send each row with `send`."""
    columns = (batch.column("key").to_pylist(), batch.column("value").to_pylist())
    for key, value in zip(*columns, strict=True):
        producer.send("bench", value, key=key)


def many(batch: pa.RecordBatch, producer: RowProducer) -> None:
    """Send lists of rows with `send_many`."""
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    producer.send_many("bench", values, keys=keys)


def rows(batch: pa.RecordBatch, producer: RowProducer) -> None:
    """Send the rows as the sink does."""
    for each in rows_by_topic(batch, "bench", 1_700_000_000_000):
        producer.send_rows(each)


def measure(send: Callable[[pa.RecordBatch, RowProducer], None], batch: pa.RecordBatch) -> float:
    """Return microseconds of CPU per row."""
    best = float("inf")
    for _ in range(ROUNDS):
        with headrace.Broker() as broker:
            broker.create_topic("bench", partitions=8)
            with RowProducer(broker, batch_size=256 << 10, linger_ms=20) as producer:
                producer.partitions_for("bench")
                before = time.process_time()
                for start in range(0, ROWS, IN_A_BATCH):
                    send(batch.slice(start, IN_A_BATCH), producer)
                producer.flush()
                best = min(best, time.process_time() - before)
    return best / ROWS * 1e6


def main() -> None:
    """Run and print all measurements."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    keys = pa.array([b"%08d" % row for row in range(ROWS)], pa.binary())
    values = pa.array([b"x" * size] * ROWS, pa.binary())
    headers = pa.array([[{"key": "h", "value": b"1"}]] * ROWS, HEADERS)
    plain = pa.record_batch([keys, values], names=["key", "value"])
    keyless = pa.record_batch([values], names=["value"])
    full = pa.record_batch([keys, values, headers], names=["key", "value", "headers"])
    print(f"{size} bytes a value; accelerator: {state}")
    for name, send, batch in (
        ("send", one_by_one, plain),
        ("send_many", many, plain),
        ("rows", rows, plain),
        ("rows without keys", rows, keyless),
        ("rows with a header", rows, full),
    ):
        print(f"{name:20} {measure(send, batch):6.2f} us/row")


if __name__ == "__main__":
    main()
