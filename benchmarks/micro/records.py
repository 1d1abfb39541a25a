"""Measure encoding and decoding of a batch's records: in Python, with the accelerator, and in aiokafka's C.

    python -m benchmarks.micro.records

The program prints the nanoseconds per record of the fastest round. Other programs on the machine can only make a round
slower.
"""

from __future__ import annotations

import importlib
import timeit
from collections.abc import Callable
from functools import partial

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from headrace.clients import partitioners
from headrace.clients.consumer.records import ConsumerRecord
from headrace.records import builder, decoding
from headrace.records.accel import API_VERSION
from headrace.records.batch import check_batch
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.reader import first_slice

ROUNDS, REPEATS = 15, 100
SHAPES = {"100 B, 500 a batch": (100, 500), "1 KiB, 60 a batch": (1024, 60)}
NOW_MS = 1_760_000_000_000


def nanoseconds(action: Callable[[], object], records: int) -> int:
    """Return the nanoseconds per record in the best round."""
    best = min(timeit.repeat(action, number=REPEATS, repeat=ROUNDS))
    return round(best / REPEATS / records * 1e9)


def encode(value: bytes, count: int) -> bytes:
    """Fill a batch record by record, as `send` does."""
    batch = BatchBuilder(max_bytes=1 << 30)
    for _ in range(count):
        batch.append(None, value, (), NOW_MS)
    return batch.build(1, 0, 0)


def encode_list(values: list[bytes | None]) -> bytes:
    """Fill a batch with a list, as `send_many` does."""
    batch = BatchBuilder(max_bytes=1 << 30)
    batch.extend(values, 0, NOW_MS)
    return batch.build(1, 0, 0)


def decode(data: bytes) -> list[ConsumerRecord]:
    """Read the records of a batch with topic, partition and offset, as a consumer does."""
    header = check_batch(data)
    records, rest = first_slice(ConsumerRecord, header, data, 0, ("topic", 1), (0,))
    assert rest is None
    return records


def encode_with_aiokafka(value: bytes, count: int) -> bytes:
    """Fill a batch with aiokafka's builder."""
    batch = DefaultRecordBatchBuilder(2, 0, 0, 1, 0, 0, 1 << 30)
    for index in range(count):
        batch.append(index, timestamp=NOW_MS, key=None, value=value, headers=[])
    return bytes(batch.build())


def decode_with_aiokafka(data: bytes) -> list[object]:
    """Read a batch with aiokafka's reader; the records have neither topic nor partition."""
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return list(batch)


def use(kernels: object) -> None:
    """Use the functions of the accelerator; None means those in Python."""
    decoding._decode_fast = getattr(kernels, "decode_records", None)  # noqa: SLF001 - switched within a process
    builder._FastWriter = getattr(kernels, "RecordWriter", None)  # noqa: SLF001 - switched within a process


def main() -> None:
    """Measure all variants and print the table."""
    ways: dict[str, object] = {"Python": None}
    try:
        package = importlib.import_module("headrace_accel")
    except ImportError:
        print("headrace-accel is not installed: pip install ./accel")
    else:
        assert package.API_VERSION == API_VERSION
        ways["accelerator"] = package.kernels
    print(f"{'ns a record':<40}" + "".join(f"{name:>14}" for name in (*ways, "aiokafka")))
    for shape, (size, count) in SHAPES.items():
        value = b"x" * size
        data = build_batch([(None, value, (), NOW_MS)] * count)
        rows: dict[str, tuple[Callable[[], object], Callable[[], object] | None]] = {
            "encode": (partial(encode, value, count), partial(encode_with_aiokafka, value, count)),
            "encode a list": (partial(encode_list, [value] * count), None),
            "decode": (partial(decode, data), partial(decode_with_aiokafka, data)),
        }
        for name, (ours, theirs) in rows.items():
            cells = []
            for kernels in ways.values():
                use(kernels)
                cells.append(nanoseconds(ours, count))
            line = "".join(f"{cell:>14}" for cell in cells)
            line += f"{nanoseconds(theirs, count):>14}" if theirs is not None else f"{'-':>14}"
            print(f"{name + ', ' + shape:<40}{line}", flush=True)
    key = b"a key of 20 bytes..."
    cells = [nanoseconds(lambda: partitioners.murmur2(key), 1)]
    if len(ways) > 1:
        cells.append(nanoseconds(lambda: package.kernels.murmur2(key), 1))
    print(f"{'hash a key of 20 bytes':<40}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
