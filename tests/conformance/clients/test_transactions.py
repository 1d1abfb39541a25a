"""Transactions of clients: commit, abort, offsets in a transaction, and a fenced producer."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka.errors import ProducerFenced
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients.java import in_properties
from tests.conformance.clients.peer import Peer
from tests.fixtures import client_security
from tests.fixtures.javascript import NodeUnavailableError, node_program
from tests.fixtures.targets import HEADRACE_TEST_SETTINGS, HeadraceServer, Target
from tools.fetch_java import JavaUnavailableError, java_command, kafka_class_path

PROGRAM = Path(__file__).parent / "programs" / "Transactions.java"
PARTITIONS = 2
MANY = 40
ROUNDS = 6
WANTED = sorted(f"{number}-{part}" for number in range(0, ROUNDS, 2) for part in range(4))
"""The values that remain when every second round is aborted."""
OFFSETS_ROUND = 4
OFFSET = 5


@pytest.fixture
def topic(target: Target) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    create(target, name, PARTITIONS)
    return name


def create(target: Target, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, **target.client_properties})
    for created in admin.create_topics([NewTopic(name, partitions)]).values():
        created.result()


def config(target: Target, **settings: str) -> dict[str, Any]:
    """Return the settings of a client of librdkafka."""
    return {"bootstrap.servers": target.bootstrap, **target.client_properties, **settings}


def read(
    target: Target,
    topic: str,
    isolation: str = "read_committed",
    partitions: int = PARTITIONS,
) -> list[str]:
    """Return all values that a consumer of this isolation level reads, up to the ends of the partitions."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            **target.client_properties,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)]
    )
    found, ends = [], 0
    while ends < partitions:
        message = consumer.poll(20)
        assert message is not None, "no answer"
        if message.error():
            ends += 1
        else:
            found.append(message.value().decode())
    consumer.close()
    return sorted(found)


def committed(target: Target, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer(config(target, **{"group.id": group}))
    (position,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], 20)
    consumer.close()
    return int(position.offset)


def check(target: Target, topic: str, extra: Iterable[str] = ()) -> None:
    assert read(target, topic) == sorted([*WANTED, *extra])
    assert len(read(target, topic, "read_uncommitted")) > len(WANTED)
    assert committed(target, f"g-{topic}", topic) == OFFSET


def test_confluent_kafka_commits_and_aborts_transactions(target: Target, topic: str) -> None:
    settings = config(target, **{"transactional.id": f"x-{topic}"})
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(20)
    member = confluent_kafka.Consumer(config(target, **{"group.id": f"g-{topic}"}))
    for number in range(ROUNDS):
        producer.begin_transaction()
        for part in range(4):
            producer.produce(topic, f"{number}-{part}", partition=part % PARTITIONS)
        if number >= OFFSETS_ROUND:
            offset = OFFSET if number == OFFSETS_ROUND else OFFSET + 1
            position = confluent_kafka.TopicPartition(topic, 0, offset)
            producer.send_offsets_to_transaction([position], member.consumer_group_metadata(), 20)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(20)
    member.close()
    producer.begin_transaction()
    producer.produce(topic, "zombie", partition=0)
    producer.flush(20)
    replacement = confluent_kafka.Producer(settings)
    replacement.init_transactions(20)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        producer.commit_transaction(20)
    assert raised.value.args[0].fatal()
    replacement.begin_transaction()
    replacement.produce(topic, "kept", partition=1)
    replacement.commit_transaction(20)
    check(target, topic, ["kept"])


def words(line: str) -> tuple[str, dict[str, object]] | None:
    """Return the fields of a line that the Java program wrote."""
    name, _, value = line.strip().partition(" ")
    return (name, {"value": value}) if value else None


@contextmanager
def java(target: Target, scratch: Path, topic: str, *arguments: str) -> Iterator[Peer]:
    """Run the Java program in this context."""
    try:
        classes = kafka_class_path()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    settings = {
        "bootstrap.servers": target.bootstrap,
        "reconnect.backoff.max.ms": "100",
        "retry.backoff.ms": "50",
        **client_security.java(target.client_properties),
    }
    properties = scratch / f"{topic}.properties"
    properties.write_text("".join(f"{key}={in_properties(settings[key])}\n" for key in settings))
    options = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command = [java_command(), *options, "-cp", classes, str(PROGRAM)]
    program = Peer(
        "java",
        [*command, str(properties), topic, str(PARTITIONS), *arguments],
        directory=scratch,
        translate=words,
    )
    try:
        yield program
        program.close()
    finally:
        program.kill()


@pytest.mark.java
def test_java_commits_and_aborts_transactions(target: Target, topic: str, scratch: Path) -> None:
    create(target, f"{topic}-wide", MANY)
    with java(target, scratch, topic, str(ROUNDS)) as program:
        found = {name: program.wait(name)["value"] for name in ("begun", "ended", "zombie", "slow")}
        program.wait("done")
    raised = int(str(found["ended"])) - int(str(found["begun"]))
    assert raised == ROUNDS or target.name.startswith("kafka")  # its third generation does not
    assert "Fenced" in str(found["zombie"])
    assert found["slow"] != "none"
    check(target, topic, ["kept"])
    assert read(target, f"{topic}-wide", partitions=MANY) == ["kept"] * MANY


@pytest.mark.java
def test_a_client_follows_the_level_of_the_feature(tmp_path: Path) -> None:
    """This includes a transaction that is open while the broker is replaced by one with another level."""
    server = LevelServer(tmp_path / "headrace")
    server.start()
    try:
        create(server, "t", PARTITIONS)
        with java(server, tmp_path, "t") as program:
            say(program, "ready")
            for level in (2, 1, 2):
                say(program, "begin")
                server.level = level
                server.restart()
                say(program, "abort")
                say(program, "begin")
                say(program, "commit")  # only now it looks at the level
                epoch = say(program, "begin")
                raised = say(program, "commit") - epoch
                assert raised == (1 if level == 2 else 0), f"at level {level}"
        assert read(server, "t") == sorted("124578")
    finally:
        server.stop()


class LevelServer(HeadraceServer):
    """A broker whose level of transaction.version changes with a restart."""

    level = 1

    def launch(self) -> None:
        self._settings = {
            **HEADRACE_TEST_SETTINGS,
            "transaction.state.log.num.partitions": "1",
            "headrace.transaction.version": str(self.level),
        }
        super().launch()


def say(program: Peer, word: str) -> int:
    answer = program.wait(word) if word == "ready" else program.call(word, do=word)
    return int(str(answer["value"]))


def test_kafkajs_commits_and_aborts_transactions(target: Target, topic: str, scratch: Path) -> None:
    try:
        command = node_program("client.js")
    except NodeUnavailableError as error:
        pytest.skip(str(error))
    program = Peer(
        "kafkajs",
        [*command, target.bootstrap],
        directory=scratch,
        properties=target.client_properties,
    )
    done = program.call(
        "done",
        do="transactions",
        topic=topic,
        partitions=PARTITIONS,
        rounds=ROUNDS,
        offset=OFFSET,
    )
    program.close()
    assert done["zombie"] in {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
    check(target, topic, ["kept"])


def test_kafka_python_commits_and_aborts_transactions(target: Target, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in an old way
        import kafka
    settings: dict[str, Any] = {
        "bootstrap_servers": target.bootstrap,
        **client_security.kafka_python(target.client_properties),
        "transactional_id": f"x-{topic}",
    }
    producer = kafka.KafkaProducer(**settings)
    producer.init_transactions()
    for number in range(ROUNDS):
        producer.begin_transaction()
        for part in range(4):
            producer.send(topic, f"{number}-{part}".encode(), partition=part % PARTITIONS)
        if number == OFFSETS_ROUND:
            offsets = {
                kafka.structs.TopicPartition(topic, 0): kafka.structs.OffsetAndMetadata(
                    OFFSET, "", -1
                )
            }
            producer.send_offsets_to_transaction(offsets, f"g-{topic}")
        (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    producer.begin_transaction()
    producer.send(topic, b"zombie", partition=0).get(20)
    replacement = kafka.KafkaProducer(**settings)
    replacement.init_transactions()
    with pytest.raises(kafka.errors.KafkaError):
        producer.commit_transaction()
    replacement.close()
    producer.close()
    check(target, topic)


def test_aiokafka_commits_and_aborts_transactions(target: Target, topic: str) -> None:
    asyncio.run(_aiokafka(target, topic))
    check(target, topic)


async def _aiokafka(target: Target, topic: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": target.bootstrap,
        **client_security.aiokafka(target.client_properties),
        "transactional_id": f"x-{topic}",
    }
    producer = aiokafka.AIOKafkaProducer(**settings)
    await producer.start()
    for number in range(ROUNDS):
        await producer.begin_transaction()
        for part in range(4):
            await producer.send(topic, f"{number}-{part}".encode(), partition=part % PARTITIONS)
        if number == OFFSETS_ROUND:
            offsets = {aiokafka.TopicPartition(topic, 0): OFFSET}
            await producer.send_offsets_to_transaction(offsets, f"g-{topic}")
        await (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"zombie", partition=0)
    replacement = aiokafka.AIOKafkaProducer(**settings)
    await replacement.start()
    with pytest.raises(ProducerFenced):
        await producer.commit_transaction()
    await replacement.stop()
    await producer.stop()
