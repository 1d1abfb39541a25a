"""Measure transactions: the rate of committed records, and the duration of commits."""

from __future__ import annotations

import time
from statistics import median

from confluent_kafka import Producer

from benchmarks.macro.workloads import PARTITIONS, QUIET

SENT_BETWEEN_LOOKS = 50  # records between two readings of the clock
QUEUE_RECORDS = 200_000


def transactional_produce(
    bootstrap: str, topic: str, *, transaction_ms: int, seconds: float, record_bytes: int
) -> dict[str, float]:
    """Produce with transactions of a given length; count committed records, and time the commits."""
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": f"{topic}-producer",
        "linger.ms": 5,
        "queue.buffering.max.messages": QUEUE_RECORDS,
        **QUIET,
    }
    producer = Producer(settings)
    producer.init_transactions(30)
    value, commits, records = b"x" * record_bytes, [], 0
    begun = time.perf_counter()
    while (now := time.perf_counter()) < begun + seconds:
        producer.begin_transaction()
        records += _fill(producer, topic, value, now + transaction_ms / 1000)
        ending = time.perf_counter()
        producer.commit_transaction(30)
        commits.append(1000 * (time.perf_counter() - ending))
    elapsed = time.perf_counter() - begun
    ordered = sorted(commits)
    return {
        "records": records,
        "records/s": records / elapsed,
        "transactions/s": len(commits) / elapsed,
        "commit p50 ms": median(ordered),
        "commit p99 ms": ordered[int(len(ordered) * 0.99)],
    }


def _fill(producer: Producer, topic: str, value: bytes, until: float) -> int:
    """Send records until the time `until`; at least one for each partition."""
    sent = 0
    while True:
        for _ in range(SENT_BETWEEN_LOOKS):
            try:
                producer.produce(topic, value, partition=sent % PARTITIONS)
                sent += 1
            except BufferError:
                producer.poll(0.001)
        producer.poll(0)
        if time.perf_counter() >= until:
            return sent
