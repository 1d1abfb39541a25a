"""Measure the latency of a stream between topics: from the creation of a record until a consumer has its output."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.macro.latency import percentiles
from benchmarks.macro.spark_inputs import MIDDLE
from benchmarks.macro.spark_session import Meter
from benchmarks.macro.workloads import QUIET

RECORDS_PER_S = 200
SETTLE_S = 3
"""The seconds from the first output to the first record that is measured."""
TIMEOUT_S = 90
"""The seconds beyond the measured time in which all records must arrive."""


class PacedProducer:
    """A producer that sends records at an even rate during a block; their values are the times of their creation."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.created_ns: list[int] = []
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._producer = Producer({**QUIET, "bootstrap.servers": bootstrap, "linger.ms": 0})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(10)

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._ended.wait(
            max(0.0, begun + len(self.created_ns) / RECORDS_PER_S - time.monotonic())
        ):
            self.created_ns.append(time.time_ns())
            partition = len(self.created_ns) % MIDDLE
            self._producer.produce(self._topic, str(self.created_ns[-1]), partition=partition)
            self._producer.poll(0)


def end_to_end(
    bootstrap: str, topic: str, paced: PacedProducer, query: Any, *, seconds: float, meter: Meter
) -> dict[str, float]:
    """Read committed records as they arrive, until all measured records have arrived.

    Raises:
        RuntimeError: Some records did not arrive, or the stream ended.
    """
    settings = {"group.id": topic, "isolation.level": "read_committed", **QUIET}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(topic, each, 0) for each in range(MIDDLE)])
    arrived: dict[int, int] = {}
    first = last = 0
    deadline = time.monotonic() + TIMEOUT_S + seconds
    try:
        while not last or time.time_ns() < last or _missing(paced, arrived, first, last):
            if time.monotonic() > deadline or not query.isActive:
                what = f"it had {query.exception()}" if not query.isActive else "too late"
                raise RuntimeError(f"{len(arrived)} records came out of the stream; {what}")
            messages = consumer.consume(500, 0.02)
            now = time.time_ns()
            if messages and not last:
                first = now + SETTLE_S * 10**9
                last = first + int(seconds * 1e9)
            if now < first:
                meter.reset()
            arrived |= {int(each.value() or 0): now for each in messages}
    finally:
        consumer.close()
    cpu_s, wall_s = meter.cpu_s(driver=False), meter.wall_s()  # producer and consumer run here
    found = percentiles(sorted(arrived[each] - each for each in _counting(paced, first, last)))
    cpu_us = cpu_s * 1e6 / (wall_s * RECORDS_PER_S)
    return {"p50 ms": found["p50 ms"], "p99 ms": found["p99 ms"], "CPU us/row": cpu_us}


def _counting(paced: PacedProducer, first: int, last: int) -> list[int]:
    return [each for each in paced.created_ns if first <= each < last]


def _missing(paced: PacedProducer, arrived: dict[int, int], first: int, last: int) -> bool:
    return any(each not in arrived for each in _counting(paced, first, last))
