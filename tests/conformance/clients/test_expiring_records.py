"""Records expire also with clients of other projects: any producer that sets a header, and any consumer.

A consumer meets batches that have lost records, and many answers in a row that have only a batch without records.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest

import headrace
from tests.conformance.clients.java import tool_command
from tests.conformance.clients.kcat import find_kcat
from tests.conformance.clients.observer import wait_until
from tests.conformance.server.wire import WireClient
from tests.fixtures.processes import ServerProcess
from tools.fetch_java import JavaUnavailableError

with warnings.catch_warnings():  # it uses what Python 3.11 has deprecated
    warnings.simplefilter("ignore")
    import kafka

TIMEOUT_S = 60.0
LAST = b"last"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Consume = Callable[[str, str, list[bytes]], None]
"""A function that appends values to a list until the last one has arrived."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("expiring")
    with ServerProcess(
        directory / "data",
        log_path=directory / "server.log",
        arguments=["--config", "log.cleaner.backoff.ms=200"],
    ) as process:
        yield process


def consume_confluent(bootstrap: str, topic: str, seen: list[bytes]) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + TIMEOUT_S
    while seen[-1:] != [LAST] and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            seen.append(message.value())
    consumer.close()


def consume_kafka_python(bootstrap: str, topic: str, seen: list[bytes]) -> None:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    deadline = time.monotonic() + TIMEOUT_S
    while seen[-1:] != [LAST] and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            seen += (each.value for each in records)
    consumer.close()


def consume_aiokafka(bootstrap: str, topic: str, seen: list[bytes]) -> None:
    async def consume() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while seen[-1:] != [LAST]:
                    seen.append((await consumer.getone()).value)
        finally:
            await consumer.stop()

    asyncio.run(consume())


def consume_headrace(bootstrap: str, topic: str, seen: list[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    with headrace.Consumer(bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign({headrace.TopicPartition(topic, 0): 0})
        while seen[-1:] != [LAST] and time.monotonic() < deadline:
            seen += (record.value for record in consumer.poll(0.5))


def read_lines(command: list[str], seen: list[bytes]) -> None:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    ends = threading.Timer(TIMEOUT_S, process.kill)
    ends.start()
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            seen.append(line.rstrip(b"\n"))
            if seen[-1] == LAST:
                break
    ends.cancel()
    process.kill()
    process.wait()


def consume_kcat(bootstrap: str, topic: str, seen: list[bytes]) -> None:
    command = find_kcat()
    if command is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    options = ["-C", "-u", "-b", bootstrap, "-t", topic, "-o", "beginning", "-q", "-f", "%s\\n"]
    read_lines([str(command), *options], seen)


def consume_java(bootstrap: str, topic: str, seen: list[bytes]) -> None:
    command = tool_command("console-consumer")
    command += ["--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"]
    read_lines([*command, "--isolation-level", "read_committed"], seen)


class Producing:
    """librdkafka, which sets a header as any program could."""

    def __init__(self, bootstrap: str, topic: str, codec: str = "none", **settings: str) -> None:
        self._topic = topic
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "batch.size": 10_000,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )

    def send(self, value: bytes, ttl_ms: int | None = None) -> None:
        headers = [] if ttl_ms is None else [("headrace.ttl-ms", str(ttl_ms))]
        self.producer.produce(self._topic, value, headers=headers)

    def flush(self) -> None:
        assert self.producer.flush(30) == 0


def produce_transactions(bootstrap: str, topic: str) -> list[bytes]:
    """One that is aborted and one that is committed, with records that have expired; return those to be read."""
    producing = Producing(bootstrap, topic, transactional_id=topic)
    producing.producer.init_transactions(30)
    for end in (producing.producer.abort_transaction, producing.producer.commit_transaction):
        producing.producer.begin_transaction()
        for number in range(10):
            producing.send(b"%s/%d" % (end.__name__.encode(), number), 0 if number % 2 else None)
        producing.flush()
        end(30)
    return [b"commit_transaction/%d" % number for number in range(0, 10, 2)]


@pytest.mark.parametrize(
    "consume",
    [
        consume_confluent,
        consume_kafka_python,
        consume_aiokafka,
        consume_kcat,
        consume_java,
        consume_headrace,
    ],
)
def test_a_consumer_gets_what_has_not_expired_and_comes_past_the_rest(
    server: ServerProcess, consume: Consume
) -> None:
    if consume is consume_java:
        try:
            tool_command("console-consumer")
        except JavaUnavailableError as error:
            pytest.skip(str(error))
    topic = consume.__name__
    with WireClient((server.host, server.port)) as client:
        client.create_topic(topic, headrace_ttl_enable="true", segment_bytes="50000")
    expected = []
    for number, codec in enumerate(CODECS):
        producer = Producing(server.bootstrap, topic, codec)
        for value in range(2000):
            lives = value % 3 == 0 and number != 1  # with one codec all expire
            text = b"%d/%d" % (number, value)
            producer.send(text, None if lives else 0)
            if lives:
                expected.append(text)
        producer.flush()
    expected += produce_transactions(server.bootstrap, topic)
    seen: list[bytes] = []
    thread = threading.Thread(target=consume, args=(server.bootstrap, topic, seen))
    thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while len(seen) < len(expected):
        assert time.monotonic() < deadline, f"{len(seen)} of {len(expected)} came"
        thread.join(0.02)
    producer = Producing(server.bootstrap, topic)
    for _ in range(30):  # more answers without a record than any client bears with
        producer.send(b"expired", 0)
        producer.flush()
        thread.join(0.02)
    producer.send(LAST)
    producer.flush()
    thread.join(TIMEOUT_S)
    assert seen == [*expected, LAST]


def test_expired_records_are_cleaned_though_retention_is_unlimited(server: ServerProcess) -> None:
    topic = "cleaned"
    with WireClient((server.host, server.port)) as client:
        client.create_topic(
            topic, headrace_ttl_enable="true", segment_bytes="50000", retention_ms="-1"
        )
    producer = Producing(server.bootstrap, topic)
    expected = [b"%d" % number for number in range(5)]
    for value in expected:
        producer.send(value)
        for _ in range(2000):
            producer.send(b"expired" * 10, 0)
    producer.send(LAST)
    producer.flush()
    assert server.data is not None
    directory = server.data / f"{topic}-0"
    values_bytes = len(expected) * 2000 * len(b"expired" * 10)
    wait_until("the cleaning", lambda: "expired_records_removed" in server.log, TIMEOUT_S)
    wait_until("its end", lambda: log_bytes(directory) < values_bytes / 2, TIMEOUT_S)
    server.kill()
    server.start()
    for path in directory.glob("*.ttlindex"):
        path.unlink()
    seen: list[bytes] = []
    consume_confluent(server.bootstrap, topic, seen)
    assert seen == [*expected, LAST]
    assert log_bytes(directory) < values_bytes / 2


def log_bytes(directory: Path) -> int:
    """Return the size of a partition's segments. A segment that is deleted meanwhile counts as empty."""
    total = 0
    for path in directory.glob("*.log"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
