"""Measure end-to-end latency at a fixed rate: from the time when a record was *due* until a consumer has it.

A sender that falls behind does not move the due times of later records. So a broker that stalls is charged for every
record that it delays, not for one (coordinated omission). Sender and receiver are separate processes and share the
machine's monotonic clock. Each record carries the time at which it was due.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.macro.workloads import PARTITIONS, QUIET

LEAD_NS = 300_000_000  # from the start of the sender until its first record is due
WARM_UP_NS = 1_000_000_000  # records of the first second are not counted
RECORD_BYTES = 100
TIMEOUT_S = 60


class Window(NamedTuple):
    """A span of the monotonic clock, in nanoseconds."""

    begin: int
    end: int


class Sender(Protocol):
    """An object that sends records one by one, each at once."""

    def send(self, value: bytes) -> None:
        """Send one record without waiting for its acknowledgement."""

    def finish(self) -> None:
        """Wait until all records are acknowledged."""


class KafkaSender:
    """A librdkafka producer without linger."""

    linger_ms = 0

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"linger.ms": self.linger_ms, "acks": "all", "delivery.report.only.error": True}
        self._producer = Producer({**QUIET, "bootstrap.servers": bootstrap, **settings})
        self._producer.list_topics(topic, timeout=10)
        self._topic, self._next = topic, 0

    def send(self, value: bytes) -> None:
        """Send one record, to the partitions in turn."""
        self._next = (self._next + 1) % PARTITIONS
        self._producer.produce(self._topic, value, partition=self._next)

    def finish(self) -> None:
        """Wait until all records are acknowledged."""
        if self._producer.flush(TIMEOUT_S):
            raise RuntimeError("records were not acknowledged")


class LingeringSender(KafkaSender):
    """A librdkafka producer with its default linger."""

    linger_ms = 5


def kafka_receiver(bootstrap: str, topic: str) -> Iterator[bytes]:
    """Yield the values of a topic as they arrive, read by librdkafka with its defaults."""
    consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": "latency"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                raise RuntimeError(str(message.error()))
            value = message.value()
            if value is not None:
                yield value
    finally:
        consumer.close()


SenderFactory = Callable[[str, str], Sender]
ReceiverFactory = Callable[[str, str], Iterable[bytes]]


def _send(open_sender: SenderFactory, address: str, topic: str, rate: int, records: int) -> int:
    """Send each record when it is due; return when the first one was due."""
    sender = open_sender(address, topic)
    filler = bytes(RECORD_BYTES - 8)
    gc.disable()
    first = time.monotonic_ns() + LEAD_NS
    for number in range(records):
        due = first + number * 1_000_000_000 // rate
        while (wait := due - time.monotonic_ns()) > 0:
            time.sleep(wait / 1e9)
        sender.send(due.to_bytes(8, "big") + filler)
    sender.finish()
    gc.enable()
    return first


def _receive(
    open_receiver: ReceiverFactory, address: str, topic: str, records: int
) -> tuple[array[int], array[int]]:
    """Return due times and latencies of the given number of records, in nanoseconds."""
    due_times, latencies = array("q"), array("q")
    gc.disable()
    now = time.monotonic_ns
    for value in open_receiver(address, topic):
        due = int.from_bytes(value[:8], "big")
        latencies.append(now() - due)
        due_times.append(due)
        if len(due_times) == records:
            break
    gc.enable()
    return due_times, latencies


def end_to_end(
    address: str,
    topic: str,
    *,
    pool: Executor,
    rate: int,
    seconds: float,
    sender: SenderFactory = KafkaSender,
    receiver: ReceiverFactory = kafka_receiver,
    during: Callable[[], Window] | None = None,
) -> dict[str, float]:
    """Send and receive at a fixed rate; return percentiles for the records that were due after the first second.

    Args:
        address: The address of the broker.
        topic: The name of a new topic.
        pool: A pool with at least two processes.
        rate: Records per second.
        seconds: The length of the measurement.
        sender: A function that opens a sender, in another process.
        receiver: A function that opens a receiver, in another process.
        during: A function that runs here meanwhile, and returns the span of time that counts.
    """
    records = int(rate * seconds)
    receiving = pool.submit(_receive, receiver, address, topic, records)
    sending = pool.submit(_send, sender, address, topic, rate, records)
    window = during() if during else None
    first = sending.result(seconds + TIMEOUT_S)
    due_times, latencies = receiving.result(TIMEOUT_S)
    if len(latencies) != records:
        raise RuntimeError(f"{records - len(latencies)} of {records} records did not come")
    begin, end = window or Window(first + WARM_UP_NS, due_times[-1] + 1)
    counted = sorted(
        latency for due, latency in zip(due_times, latencies, strict=True) if begin <= due < end
    )
    return percentiles(counted)


def percentiles(sorted_ns: list[int]) -> dict[str, float]:
    """Return percentiles in milliseconds of sorted latencies in nanoseconds."""
    if not sorted_ns:
        raise RuntimeError("no record was due in the time that counts")
    last = len(sorted_ns) - 1
    return {
        f"{name} ms": sorted_ns[min(last, int(len(sorted_ns) * share))] / 1e6
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }
