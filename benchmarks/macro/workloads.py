"""Put loads on a broker with Kafka's own performance tools, librdkafka, and requests over a socket."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, BinaryIO, cast

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.macro.servers import produce_frame, produced_error, read_response
from tools.fetch_java import java_command, kafka_class_path

PARTITIONS = 6
TOOL_TIMEOUT_S = 300
LEADER_TIMEOUT_S = 10
QUIET = {"log_level": 3}
PLAIN: Mapping[str, str] = {}  # no security; otherwise librdkafka's properties for it
CHUNK = 5_000  # records per call of librdkafka
_PRODUCED = re.compile(
    r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec .*?([\d.]+) ms avg latency, .*?"
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


@dataclass(frozen=True)
class Run:
    """The result of one load. A latency is the time from passing a record to the client until its acknowledgement."""

    records_per_s: float
    megabytes: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None


def _java(main_class: str, *arguments: str) -> str:
    # The options that kafka-run-class.sh uses for tools.
    options = ["-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
    options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command = [java_command(), *options, "-cp", kafka_class_path(), main_class, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{main_class}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def create_topic(
    bootstrap: str, topic: str, partitions: int = PARTITIONS, security: Mapping[str, str] = PLAIN
) -> float:
    """Create a topic and wait until all its partitions have a leader; return the seconds that this took."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET, **security})
    admin.list_topics(timeout=10)
    begun = time.perf_counter()
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    while True:
        known = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        elapsed = time.perf_counter() - begun
        if len(known) == partitions and all(each.leader >= 0 for each in known):
            return elapsed
        if elapsed > LEADER_TIMEOUT_S:
            raise RuntimeError(f"{topic} has no leaders after {elapsed:.0f} s")
        time.sleep(0.005)


def delete_topic(bootstrap: str, topic: str, security: Mapping[str, str] = PLAIN) -> None:
    """Delete a topic, so that the disk does not fill."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET, **security})
    admin.delete_topics([topic])[topic].result(30)


def java_produce(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    acks: str,
    records_per_s: int = -1,
) -> Run:
    """Run `kafka-producer-perf-test` with its defaults (idempotent with acks=all)."""
    output = _java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)),
        *("--throughput", str(records_per_s), "--bootstrap-server", bootstrap),
        *("--warmup-records", str(records // 4)),
        *("--command-property", f"acks={acks}"),
    )
    steady = list(_PRODUCED.finditer(output))[-1]  # the tool's JVM is warm then
    _, rate, _, p50, _, p99 = steady.groups()
    return Run(float(rate), records * record_bytes / 1e6, float(p50), float(p99))


def java_consume(bootstrap: str, topic: str, *, records: int, record_bytes: int) -> Run:
    """Run `kafka-consumer-perf-test`; the rate excludes the time to join the group."""
    output = _java(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--topic", topic, "--num-records", str(records), "--bootstrap-server", bootstrap),
        "--hide-header",
    )
    fields = output.strip().splitlines()[-1].split(",")
    return Run(float(fields[9]), int(fields[4]) * record_bytes / 1e6)


def _producer(bootstrap: str, acks: str, **settings: Any) -> Producer:
    return Producer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            **settings,
        }
    )


def librdkafka_produce(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    acks: str,
    producers: int = 1,
    partitions: int = PARTITIONS,
    chunk: int = CHUNK,
    security: Mapping[str, str] = PLAIN,
) -> Run:
    """Produce with librdkafka at full speed, in batches of up to 1 MB.

    The client receives `chunk` records at a time; producers and partitions take turns with each chunk.
    """
    settings = {"linger.ms": 5, "batch.num.messages": 100_000, "delivery.report.only.error": True}
    clients = [_producer(bootstrap, acks, **settings, **security) for _ in range(producers)]
    failed: list[str] = []

    def not_delivered(error: KafkaError | None, _: Message) -> None:
        failed.append(str(error))

    batch = [{"value": b"x" * record_bytes}] * chunk
    for producer in clients:
        producer.list_topics(topic, timeout=10)
    begun = time.perf_counter()
    for turn in range(-(-records // chunk)):
        # Each cycle shifts the partitions by one, so that all producers write to all partitions.
        partition = (turn + turn // (producers * partitions)) % partitions
        part = batch if (turn + 1) * chunk <= records else batch[: records - turn * chunk]
        clients[turn % producers].produce_batch(
            topic, part, partition=partition, on_delivery=not_delivered
        )
    left = sum(producer.flush(TOOL_TIMEOUT_S) for producer in clients)
    elapsed = time.perf_counter() - begun
    if left or failed:
        raise RuntimeError(
            f"{left} records are not acknowledged, {len(failed)} failed: {failed[:1]}"
        )
    return Run(records / elapsed, records * record_bytes / 1e6)


def librdkafka_consume(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    partitions: int = PARTITIONS,
    security: Mapping[str, str] = PLAIN,
) -> Run:
    """Read a topic from its start with librdkafka."""
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "queued.min.messages": 500_000,
            # Otherwise librdkafka pauses for a second with a full queue if the broker is faster than Python.
            "queued.max.messages.kbytes": 1_000_000,
            "fetch.queue.backoff.ms": 5,
            **security,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    seen, begun = 0, time.perf_counter()
    while seen < records:
        # At most the remaining records: the call waits until it has that many.
        messages = consumer.consume(min(10_000, records - seen), 1.0)
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
        seen += len(messages)
        if time.perf_counter() - begun > TOOL_TIMEOUT_S:
            raise RuntimeError(f"{records - seen} of {records} records did not come")
    elapsed = time.perf_counter() - begun
    consumer.close()
    return Run(seen / elapsed, seen * record_bytes / 1e6)


def paced_latency(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    acks: str,
    records_per_s: int,
    security: Mapping[str, str] = PLAIN,
) -> dict[str, float]:
    """Produce with librdkafka without linger at a low rate, one record in each request. Latencies are librdkafka's."""
    latencies: list[float] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        latencies.append(message.latency() * 1000)

    producer = _producer(bootstrap, acks, **{"linger.ms": 0, **security})
    value = b"x" * record_bytes
    producer.list_topics(topic, timeout=10)
    begun = time.perf_counter()
    for number in range(records):
        while (wait := begun + number / records_per_s - time.perf_counter()) > 0:
            producer.poll(min(wait, 0.001))
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
    producer.flush(30)
    if len(latencies) != records:
        raise RuntimeError(f"{records - len(latencies)} records were not acknowledged")
    steady = sorted(latencies[records // 10 :])  # without the connection's first records
    p99 = steady[int(len(steady) * 0.99)]
    return {"p50 ms": median(steady), "p99 ms": p99}


def _wait_for_leader(link: socket.socket, stream: BinaryIO, frame: bytes, topic: str) -> None:
    """Produce until it succeeds, because the leader of a new topic may need a moment."""
    deadline = time.monotonic() + LEADER_TIMEOUT_S
    while True:
        link.sendall(frame)
        error = produced_error(read_response(stream), topic)
        if error == 0:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic}: still error {error}")
        time.sleep(0.02)


def plain_requests(bootstrap: str, topic: str, *, requests: int, in_flight: int) -> Run:
    """Send Produce requests of one 100-byte record with acks=all on one connection, `in_flight` at a time."""
    host, port = bootstrap.rsplit(":", 1)
    frame = produce_frame(topic, 0, 100)
    with socket.create_connection((host, int(port)), timeout=30) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = cast("BinaryIO", link.makefile("rb", buffering=1 << 16))
        _wait_for_leader(link, stream, frame, topic)
        begun = time.perf_counter()
        sent = answered = 0
        response = b""
        while answered < requests:
            burst = min(in_flight - (sent - answered), requests - sent)
            if burst > 0 and (in_flight == 1 or burst >= in_flight // 2 or sent == answered):
                link.sendall(frame * burst)
                sent += burst
            response = read_response(stream)
            answered += 1
        elapsed = time.perf_counter() - begun
    if produced_error(response, topic) != 0:
        raise RuntimeError(f"error {produced_error(response, topic)}")
    return Run(requests / elapsed, requests * 100 / 1e6)
