"""Scheduled records work with clients of other projects: any producer that sets a header, and any consumer.

While no record is due, a consumer may read dozens of control records in a row: one for each batch of scheduled records.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest

import headrace
from tests.conformance.clients.java import tool_command
from tests.conformance.clients.kcat import find_kcat
from tests.conformance.server.wire import WireClient
from tests.fixtures.processes import ServerProcess
from tools.fetch_java import JavaUnavailableError

with warnings.catch_warnings():  # it uses what Python 3.11 has deprecated
    warnings.simplefilter("ignore")
    import kafka

HEADER = "headrace.deliver-at-ms"
COUNT = 25
TIMEOUT_S = 60.0
SLACK_MS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("delayed")
    with ServerProcess(directory / "data", log_path=directory / "server.log") as process:
        yield process


@pytest.fixture
def topic(server: ServerProcess, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "." for each in request.node.name)
    with WireClient((server.host, server.port)) as client:
        client.create_topic(name, headrace_delay_enable="true")
    return name


@dataclass
class Came:
    """A record that a consumer has received."""

    value: bytes
    timestamp_ms: int
    arrived_ms: float


Consume = Callable[[str, str, int], list[Came]]


def now_ms() -> float:
    return time.time() * 1000


def consume_confluent(bootstrap: str, topic: str, count: int) -> list[Came]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    came: list[Came] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(came) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            came.append(Came(message.value(), message.timestamp()[1], now_ms()))
    consumer.close()
    return came


def consume_kafka_python(bootstrap: str, topic: str, count: int) -> list[Came]:
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    came: list[Came] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(came) < count and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            came += (Came(each.value, each.timestamp, now_ms()) for each in records)
    consumer.close()
    return came


def consume_aiokafka(bootstrap: str, topic: str, count: int) -> list[Came]:
    async def consume() -> list[Came]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        came: list[Came] = []
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while len(came) < count:
                    record = await consumer.getone()
                    came.append(Came(record.value, record.timestamp, now_ms()))
        finally:
            await consumer.stop()
        return came

    return asyncio.run(consume())


def consume_headrace(bootstrap: str, topic: str, count: int) -> list[Came]:
    came: list[Came] = []
    deadline = time.monotonic() + TIMEOUT_S
    with headrace.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([headrace.TopicPartition(topic, 0)])
        while len(came) < count and time.monotonic() < deadline:
            came += (
                Came(record.value, record.timestamp_ms, now_ms()) for record in consumer.poll(0.5)
            )
    return came


def lines_of(command: list[str], count: int) -> list[Came]:
    """Read lines `timestamp value` of a program that ends after `count` records."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    ends = threading.Timer(TIMEOUT_S, process.kill)
    ends.start()
    came: list[Came] = []
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            timestamp, value = line.rstrip(b"\n").split(b" ", 1)
            came.append(Came(value, int(timestamp), now_ms()))
            if len(came) == count:
                break
    ends.cancel()
    process.kill()
    process.wait()
    return came


def consume_kcat(bootstrap: str, topic: str, count: int) -> list[Came]:
    command = find_kcat()
    if command is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    options = ["-C", "-u", "-b", bootstrap, "-t", topic, "-o", "beginning", "-c", str(count)]
    return lines_of([str(command), *options, "-q", "-f", "%T %s\\n"], count)


def consume_java(bootstrap: str, topic: str, count: int) -> list[Came]:
    try:
        command = tool_command("console-consumer")
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    command += ["--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"]
    command += ["--property", "print.timestamp=true", "--max-messages", str(count)]
    process = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
    came = []
    for line in process.stdout.splitlines():
        if line.startswith(b"CreateTime:"):  # others say that an option is called otherwise now
            stamp, value = line.split()
            came.append(Came(value, int(stamp.removeprefix(b"CreateTime:")), now_ms()))
    return came


def produce_confluent(bootstrap: str, topic: str, due_ms: list[int], *, idempotent: bool) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": idempotent, "linger.ms": 0}
    )
    for number, due in enumerate(due_ms):
        producer.produce(topic, b"%d" % number, headers=[(HEADER, str(due))])
        assert producer.flush(20) == 0  # so that each is a batch of its own


def check(came: list[Came], due_ms: list[int]) -> None:
    assert sorted(int(each.value) for each in came) == list(range(len(due_ms)))
    for each in came:
        due = due_ms[int(each.value)]
        assert (
            due <= each.timestamp_ms < due + 10_000
        )  # later than due only if it was sent too late
        assert each.arrived_ms >= each.timestamp_ms - SLACK_MS
    stamps = [each.timestamp_ms for each in came]
    assert stamps == sorted(stamps)


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
def test_a_consumer_waits_past_what_is_not_due(
    server: ServerProcess, topic: str, consume: Consume
) -> None:
    came: list[Came] = []
    thread = threading.Thread(
        target=lambda: came.extend(consume(server.bootstrap, topic, COUNT + 1))
    )
    began_ms = int(now_ms())
    produce_confluent(server.bootstrap, topic, [began_ms], idempotent=True)
    thread.start()
    # Half while the consumer comes up, half while it waits for more.
    due_ms = [began_ms, *(began_ms + 3000 - number for number in range(COUNT))]
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})
    for number, due in enumerate(due_ms[1:], 1):
        producer.produce(topic, b"%d" % number, headers=[(HEADER, str(due))])
        assert producer.flush(20) == 0
    thread.join(TIMEOUT_S + 10)
    assert len(came) == COUNT + 1
    check(came, due_ms)


@pytest.mark.parametrize("idempotent", [True, False])
def test_confluent_kafka_delays(server: ServerProcess, topic: str, *, idempotent: bool) -> None:
    due_ms = [int(now_ms()) + 2000 + 10 * (number % 7) for number in range(20)]
    produce_confluent(server.bootstrap, topic, due_ms, idempotent=idempotent)
    check(consume_confluent(server.bootstrap, topic, 20), due_ms)


def test_kafka_python_and_aiokafka_delay(server: ServerProcess, topic: str) -> None:
    due_ms = [int(now_ms()) + 2000 + 10 * (number % 7) for number in range(20)]
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap)
    for number, due in enumerate(due_ms[:10]):
        producer.send(topic, b"%d" % number, headers=[(HEADER, b"%d" % due)]).get(20)
    producer.close()

    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=server.bootstrap, enable_idempotence=True
        ) as sender:
            for number, due in enumerate(due_ms[10:], 10):
                headers = [(HEADER, b"%d" % due)]
                await sender.send_and_wait(topic, b"%d" % number, headers=headers)

    asyncio.run(produce())
    check(consume_headrace(server.bootstrap, topic, 20), due_ms)


def test_records_that_java_schedules_arrive_when_they_are_due(
    server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    try:
        command = tool_command("console-producer")
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    due_ms = [int(now_ms()) + 5000 + 10 * (number % 7) for number in range(20)]
    lines = "".join(f"{HEADER}:{due}\t{number}\n" for number, due in enumerate(due_ms))
    command += ["--bootstrap-server", server.bootstrap, "--topic", topic]
    command += ["--property", "parse.headers=true", "--compression-codec", "gzip"]
    subprocess.run(command, input=lines.encode(), timeout=TIMEOUT_S, check=True)
    check(consume_confluent(server.bootstrap, topic, 20), due_ms)


def test_a_producer_gets_the_reason_of_a_refusal(server: ServerProcess, topic: str) -> None:
    told: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(
        topic, b"x", headers=[(HEADER, b"soon")], on_delivery=lambda error, _: told.append(error)
    )
    assert producer.flush(20) == 0
    assert [error.code() for error in told] == [confluent_kafka.KafkaError.INVALID_RECORD]
