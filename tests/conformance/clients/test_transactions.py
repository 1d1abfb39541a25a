"""Transactions of clients: commit, abort, offsets in the transaction, and a producer that was replaced."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterable

import aiokafka
import confluent_kafka
import pytest
from aiokafka.errors import ProducerFenced
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fixtures.targets import Target

PARTITIONS = 2
ROUNDS = 6
WANTED = sorted(f"{number}-{part}" for number in range(0, ROUNDS, 2) for part in range(4))
"""What remains of the rounds of which every second one is aborted."""
OFFSETS_ROUND = 4
OFFSET = 5


@pytest.fixture
def topic(target: Target) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        created.result()
    return name


def read(target: Target, topic: str, isolation: str = "read_committed") -> list[str]:
    """Return all values that a consumer of this isolation level reads, up to the ends of the partitions."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    )
    found, ends = [], 0
    while ends < PARTITIONS:
        message = consumer.poll(20)
        assert message is not None, "no answer"
        if message.error():
            ends += 1
        else:
            found.append(message.value().decode())
    consumer.close()
    return sorted(found)


def committed(target: Target, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": target.bootstrap, "group.id": group})
    (position,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], 20)
    consumer.close()
    return int(position.offset)


def check(target: Target, topic: str, extra: Iterable[str] = ()) -> None:
    assert read(target, topic) == sorted([*WANTED, *extra])
    assert len(read(target, topic, "read_uncommitted")) > len(WANTED)
    assert committed(target, f"g-{topic}", topic) == OFFSET


def test_confluent_kafka(target: Target, topic: str) -> None:
    config = {"bootstrap.servers": target.bootstrap, "transactional.id": f"x-{topic}"}
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(20)
    member = confluent_kafka.Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": f"g-{topic}"}
    )
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
    replacement = confluent_kafka.Producer(config)
    replacement.init_transactions(20)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        producer.commit_transaction(20)
    assert raised.value.args[0].fatal()
    replacement.begin_transaction()
    replacement.produce(topic, "kept", partition=1)
    replacement.commit_transaction(20)
    check(target, topic, ["kept"])


def test_kafka_python(target: Target, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in an old way
        import kafka  # noqa: PLC0415 - where its warnings are not errors
    config = {"bootstrap_servers": target.bootstrap, "transactional_id": f"x-{topic}"}
    producer = kafka.KafkaProducer(**config)
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
    replacement = kafka.KafkaProducer(**config)
    replacement.init_transactions()
    with pytest.raises(kafka.errors.KafkaError):
        producer.commit_transaction()
    replacement.close()
    producer.close()
    check(target, topic)


def test_aiokafka(target: Target, topic: str) -> None:
    asyncio.run(_aiokafka(target, topic))
    check(target, topic)


async def _aiokafka(target: Target, topic: str) -> None:
    config = {"bootstrap_servers": target.bootstrap, "transactional_id": f"x-{topic}"}
    producer = aiokafka.AIOKafkaProducer(**config)
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
    replacement = aiokafka.AIOKafkaProducer(**config)
    await replacement.start()
    with pytest.raises(ProducerFenced):
        await producer.commit_transaction()
    await replacement.stop()
    await producer.stop()
