"""Headrace's own producers with transactions, on Headrace and on Kafka; librdkafka reads along."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import confluent_kafka
import pytest

import headrace
from headrace.errors import HeadraceError, ProducerFencedError
from headrace.types import TopicPartition
from tests.fixtures.targets import Target

PARTITIONS = 2
ROUNDS = 6
WANTED = sorted(f"{number}-{part}" for number in range(0, ROUNDS, 2) for part in range(4))
"""The values that remain when every second round is aborted."""


class SpoiltError(Exception):
    """The error with which the program aborts a transaction."""


@pytest.fixture
def topic(target: Target) -> Iterator[str]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with headrace.Admin(target.bootstrap, **target.admin_properties) as admin:
        admin.create_topic(name, PARTITIONS)
        yield name


def options(target: Target, name: str, **more: Any) -> dict[str, Any]:
    return {"transactional_id": name, **target.admin_properties, **more}


def read(target: Target, topic: str, isolation: str = "read_committed") -> list[str]:
    """Return all values that our consumer reads, which are those that librdkafka reads, in their order."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ours: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
    more: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": isolation}
    await_markers(target, partitions)
    with headrace.Consumer(target.bootstrap, **more, **target.admin_properties) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(name) < ends[name] for name in partitions):
            for record in consumer.poll(1):
                ours[record.partition].append(record.value.decode())
    assert ours == read_by_librdkafka(target, topic, isolation)
    return sorted(value for values in ours.values() for value in values)


def await_markers(target: Target, partitions: list[TopicPartition]) -> None:
    """Wait until every transaction has its markers in the partitions, which is soon after its confirmed end."""
    deadline = time.monotonic() + 20
    committed = headrace.Consumer(
        target.bootstrap, isolation_level="read_committed", **target.admin_properties
    )
    with committed, headrace.Consumer(target.bootstrap, **target.admin_properties) as consumer:
        while committed.end_offsets(partitions) != consumer.end_offsets(partitions):
            assert time.monotonic() < deadline, "a transaction has no end"


def read_by_librdkafka(target: Target, topic: str, isolation: str) -> dict[int, list[str]]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **target.admin_properties,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    found: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(20)
        assert message is not None, "no answer"
        if message.error():
            ends += 1
        else:
            found[message.partition()].append(message.value().decode())
    consumer.close()
    return found


def test_readers_see_committed_records_only(target: Target, topic: str) -> None:
    group = f"g-{topic}"
    who = headrace.Consumer(
        target.bootstrap, group=group, enable_auto_commit=False, **target.admin_properties
    )
    with who, headrace.Producer(target.bootstrap, **options(target, topic)) as producer:
        who.assign([TopicPartition(topic, 0)])
        for number in range(ROUNDS):
            with suppress(SpoiltError), producer.transaction() as transaction:
                for part in range(4):
                    producer.send(topic, f"{number}-{part}".encode(), partition=part % PARTITIONS)
                transaction.send_offsets({TopicPartition(topic, 0): number}, who)
                if number % 2:
                    producer.flush()
                    raise SpoiltError
        committed = who.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        assert committed is not None
        assert committed.offset == ROUNDS - 2
    assert read(target, topic) == WANTED
    assert len(read(target, topic, "read_uncommitted")) == 4 * ROUNDS


def test_the_same_with_asyncio(target: Target, topic: str) -> None:
    async def run() -> None:
        async with headrace.aio.Producer(target.bootstrap, **options(target, topic)) as producer:
            for number in range(ROUNDS):
                with suppress(SpoiltError):
                    async with producer.transaction():
                        for part in range(4):
                            value = f"{number}-{part}".encode()
                            _ = await producer.send(topic, value, partition=part % PARTITIONS)
                        if number % 2:
                            raise SpoiltError  # before or after the first batch is sent

    asyncio.run(run())
    assert read(target, topic) == WANTED


def test_a_replaced_producer_gets_an_error_and_writes_nothing(target: Target, topic: str) -> None:
    with (
        suppress(HeadraceError),
        headrace.Producer(target.bootstrap, **options(target, topic)) as first,
    ):
        first.begin_transaction()
        first.send(topic, b"no", partition=0)
        first.flush()
        with headrace.Producer(target.bootstrap, **options(target, topic)) as second:
            with second.transaction():
                second.send(topic, b"yes", partition=0)
            with pytest.raises(ProducerFencedError):
                first.commit_transaction()
            with pytest.raises(ProducerFencedError):
                first.begin_transaction()
    assert read(target, topic) == ["yes"]


def test_a_producer_that_is_replaced_between_transactions_gets_an_error(
    target: Target, topic: str
) -> None:
    first = headrace.Producer(target.bootstrap, **options(target, topic))
    with first.transaction():
        first.send(topic, b"1", partition=0)
    with headrace.Producer(target.bootstrap, **options(target, topic)) as second:
        second.init_transactions()

    def write() -> None:
        with first.transaction():
            first.send(topic, b"no", partition=0)

    with pytest.raises(ProducerFencedError):
        write()
    first.close()
    assert read(target, topic) == ["1"]


def test_a_transaction_of_a_producer_that_died_ends_with_its_successor(
    target: Target, topic: str
) -> None:
    first = headrace.Producer(target.bootstrap, **options(target, topic))
    first.begin_transaction()
    first.send(topic, b"no", partition=0)
    first.flush()
    first._driver.close()  # no farewell
    second = headrace.Producer(target.bootstrap, **options(target, topic))
    with second, second.transaction():
        second.send(topic, b"yes", partition=0)
    assert read(target, topic) == ["yes"]


def test_many_short_transactions_one_after_another(target: Target, topic: str) -> None:
    with headrace.Producer(target.bootstrap, **options(target, topic)) as producer:
        for number in range(50):
            with producer.transaction():
                producer.send(topic, b"%02d" % number, partition=number % PARTITIONS)
    assert read(target, topic) == [f"{number:02}" for number in range(50)]
