"""A topic that is deleted while a producer writes to it is created again by the next record, as by Java's producer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
import headrace.aio
from headrace.errors import HeadraceError

NO_CREATION = {"auto.create.topics.enable": False}


@pytest.fixture(params=["in process", "tcp"])
def broker_and_target(request: pytest.FixtureRequest) -> Iterator[tuple[headrace.Broker, Any]]:
    with headrace.Broker() as broker:
        broker.create_topic("t", 1)
        yield broker, broker if request.param == "in process" else broker.listen()


@pytest.mark.parametrize(
    "options",
    [{}, {"acks": 1}, {"transactional_id": "x"}],
    ids=["default", "acks 1", "transactional"],
)
def test_a_topic_that_was_deleted_is_created_again(
    broker_and_target: tuple[headrace.Broker, Any], options: dict[str, Any]
) -> None:
    broker, target = broker_and_target
    with headrace.Producer(target, **options) as producer:
        for value in (b"1", b"2", b"3"):
            if options.get("transactional_id"):
                with producer.transaction():
                    sent = producer.send("t", value)
            else:
                sent = producer.send("t", value)
            assert sent.result(20).offset == 0
            broker.delete_topic("t")


def test_a_topic_is_created_again_for_asyncio() -> None:
    async def send_twice(broker: headrace.Broker) -> list[int]:
        async with headrace.aio.Producer(broker.listen()) as producer:
            first = await (await producer.send("t", b"1"))
            broker.delete_topic("t")
            second = await (await producer.send("t", b"2"))
            return [first.offset, second.offset]

    with headrace.Broker() as broker:
        broker.create_topic("t", 1)
        assert asyncio.run(send_twice(broker)) == [0, 0]


def test_the_timeout_error_advises_to_create_the_topic() -> None:
    clock = headrace.ManualClock()  # the default time-out is two minutes
    with headrace.Broker(clock=clock, configs=NO_CREATION) as broker:
        broker.create_topic("t", 1)
        with headrace.Producer(broker) as producer:
            producer.send("t", b"1").result()
            broker.delete_topic("t")
            sent = producer.send("t", b"2")
            with pytest.raises(HeadraceError, match=r"UNKNOWN_TOPIC_ID.*create the topic"):
                sent.result()


def test_a_record_for_a_partition_that_the_new_topic_lacks_fails() -> None:
    clock = headrace.ManualClock()  # the default time-out is two minutes
    with headrace.Broker(clock=clock) as broker:
        broker.create_topic("t", 3)
        with headrace.Producer(broker) as producer:
            producer.send("t", b"1", partition=2).result()
            broker.delete_topic("t")
            sent = producer.send("t", b"2", partition=2)
            with pytest.raises(HeadraceError, match=r"t-2: the topic has only 1 partitions now"):
                sent.result()


def test_a_topic_that_was_created_again_has_its_own_serde_and_partitions() -> None:
    clock = headrace.ManualClock()
    with headrace.Broker(clock=clock) as broker, headrace.Producer(broker) as producer:
        broker.create_topic("t", 1, serde="json")
        producer.send("t", {"a": 1}).result()
        broker.delete_topic("t")
        broker.create_topic("t", 2, serde="str")
        clock.advance_to(clock.now_ms() + 301_000)  # metadata.max.age.ms is 5 minutes
        producer.send("t", "as the old topic says", partition=0).result()  # and asks for metadata
        producer.send("t", "x", partition=0).result()
        assert producer.send("t", "y", partition=1).result().partition == 1
        values = [record.value for record in broker.read("t", 0, 0, serde="bytes")]
        assert values == [b'"as the old topic says"', b"x"]


def test_a_partition_that_only_the_new_topic_has_is_found_with_its_serde() -> None:
    with headrace.Broker() as broker, headrace.Producer(broker) as producer:
        broker.create_topic("t", 1, serde="json")
        producer.send("t", {"a": 1}).result()
        broker.delete_topic("t")
        broker.create_topic("t", 2, serde="str")
        producer.send("t", "x", partition=1).result()
        assert [record.value for record in broker.read("t", 1, 0, serde="bytes")] == [b"x"]


def test_records_of_a_recreated_topic_are_read_with_the_new_serde() -> None:
    with headrace.Broker() as broker:
        broker.create_topic("t", 1, serde="json")
        with headrace.Producer(broker, serde="bytes") as producer:
            producer.send("t", b'{"a": 1}').result()
        assert [record.value for record in broker.read("t", 0, 0)] == [{"a": 1}]
        broker.delete_topic("t")
        broker.create_topic("t", 1, serde="str")
        with headrace.Producer(broker, serde="bytes") as producer:
            producer.send("t", b"x").result()
        assert [record.value for record in broker.read("t", 0, 0)] == ["x"]


def test_a_consumer_reads_a_topic_that_was_created_again_by_its_new_serde(
    broker_and_target: tuple[headrace.Broker, Any],
) -> None:
    broker, target = broker_and_target
    broker.create_topic("u", 1, serde="json")
    options: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "metadata_max_age_ms": 100,
    }  # default: 5 minutes
    with headrace.Consumer(target, **options) as consumer:
        consumer.assign([headrace.TopicPartition("u", 0)])
        with headrace.Producer(broker, serde="bytes") as producer:
            producer.send("u", b'{"a": 1}').result()
        assert [record.value for record in consumer.poll(20)] == [{"a": 1}]
        broker.delete_topic("u")
        broker.create_topic("u", 1, serde="str")
        with headrace.Producer(broker, serde="bytes") as producer:
            producer.send("u", b"x").result()
        found: list[Any] = []
        for _ in range(20):
            found += [record.value for record in consumer.poll(1)]
            if found:
                break
        assert found == ["x"]


@pytest.mark.parametrize("idempotence", [True, False])
def test_a_topic_that_was_created_again_meanwhile_is_noticed_by_its_first_offset(
    *, idempotence: bool
) -> None:
    with headrace.Broker() as broker:
        broker.create_topic("t", serde="json")
        with headrace.Producer(broker, linger_ms=0, enable_idempotence=idempotence) as producer:
            for _ in range(3):
                producer.send("t", "old").result()
            broker.delete_topic("t")
            broker.create_topic("t", serde="str")
            for _ in range(20):  # the look-up goes on beside it
                producer.send("t", "new").result()
        values = [each.value for each in broker.read("t", 0, 0, serde="bytes")]
    assert (values[0], values[-1]) == (b'"new"', b"new")
