"""Measure how long a record takes through a worker of Headrace that processes exactly once, on either broker.

    python -m benchmarks.macro.exactly_once_loads BOOTSTRAP SOURCE SINK

runs only the worker, until it is killed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Self

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.macro.workloads import PARTITIONS, QUIET

RECORDS_PER_S = 200
WARM_UP_S = 3.0
START_TIMEOUT_S = 60
DRAIN_TIMEOUT_S = 30


def serve(bootstrap: str, source: str, sink: str) -> None:
    """Run the worker, which copies each record from one topic to the other."""
    import headrace

    app = headrace.App(bootstrap)

    @app.worker(source, group=f"{source}-group", delivery="exactly_once")
    @app.publishes(sink)
    async def copy(value: bytes) -> bytes:
        return value

    app.run()


@contextmanager
def _worker(*arguments: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.macro.exactly_once_loads", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Reader:
    """A consumer with read_committed that measures the time of each record since the moment in its value."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        reading = {"isolation.level": "read_committed", "enable.auto.commit": False}
        common = {"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", **QUIET}
        self._consumer = Consumer({**common, **reading, "fetch.wait.max.ms": 100})
        self._consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.latencies: dict[int, float] = {}

    def _read(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(500, timeout=0.01):
                if message.error() is None:
                    sent = int(message.value() or b"0")
                    self.latencies[sent] = (time.monotonic_ns() - sent) / 1e6

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()


def end_to_end(bootstrap: str, source: str, sink: str, *, seconds: float) -> dict[str, float]:
    """Send records at an even rate through a worker.

    Returns:
        Percentiles of the milliseconds from sending a record until a consumer with read_committed has it.

    Raises:
        RuntimeError: The worker did not begin, or records did not arrive.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **QUIET})
    with _worker(bootstrap, source, sink), Reader(bootstrap, sink) as reader:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not reader.latencies:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the worker brought nothing in {START_TIMEOUT_S} s")
            _send(producer, source, 0.1)
        _send(producer, source, WARM_UP_S)
        sent = _send(producer, source, seconds)
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while missing := sent - reader.latencies.keys():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(missing)} of {len(sent)} records did not come out")
            time.sleep(0.01)
        found = sorted(reader.latencies[each] for each in sent)
    return {"p50 ms": median(found), "p99 ms": found[int(len(found) * 0.99)]}


def _send(producer: Producer, topic: str, seconds: float) -> set[int]:
    """Send records at an even rate for `seconds`; return their values, which are the times of sending."""
    sent, begun = set(), time.monotonic()
    for number in range(int(seconds * RECORDS_PER_S)):
        while (wait := begun + number / RECORDS_PER_S - time.monotonic()) > 0:
            producer.poll(min(wait, 0.001))
        stamp = time.monotonic_ns()
        producer.produce(topic, str(stamp).encode(), partition=number % PARTITIONS)
        sent.add(stamp)
    producer.flush(30)
    return sent


if __name__ == "__main__":
    serve(*sys.argv[1:])
