"""Types of the clients, for type checkers: `make check` runs mypy over this file, and the tests check the values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import pytest

import headrace
from headrace.serdes.serde import Serde
from headrace.testing import context
from headrace.types import TopicPartition

ZERO = TopicPartition("orders", 0)


@dataclass
class Order:
    id: int


class OrderSerde:
    def serialize(self, value: Order) -> bytes:
        return str(value.id).encode()

    def deserialize(self, data: bytes) -> Order:
        return Order(int(data))


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    with headrace.Broker() as broker, headrace.Producer(broker, serde=Order) as producer:
        broker.create_topic("orders")
        producer.send("orders", Order(7)).result(10)
        yield broker


def test_a_type_as_serde_is_the_type_of_values(broker: headrace.Broker) -> None:
    with headrace.Consumer(broker, auto_offset_reset="earliest", serde=Order) as consumer:
        assert_type(consumer, headrace.Consumer[Order])
        consumer.assign([ZERO])
        records = consumer.poll(10)
        assert_type(records, list[headrace.ConsumerRecord[Order]])
        assert_type(records[0].value, Order)
        assert records[0].value.id == 7
        consumer.seek(ZERO, 0)
        for record in consumer:
            assert_type(record, headrace.ConsumerRecord[Order])
            assert record.value == Order(7)
            break


def test_a_type_as_serde_is_the_type_of_values_with_asyncio(broker: headrace.Broker) -> None:
    async def read() -> Order:
        options: dict[str, Any] = {"auto_offset_reset": "earliest"}
        async with headrace.aio.Consumer(broker, serde=Order, **options) as consumer:
            assert_type(consumer, headrace.aio.Consumer[Order])
            await consumer.assign([ZERO])
            assert_type(await consumer.poll(10), list[headrace.ConsumerRecord[Order]])
            await consumer.seek_to_beginning()
            async for record in consumer:
                assert_type(record.value, Order)
                return record.value
        raise AssertionError

    assert asyncio.run(read()) == Order(7)


def test_the_value_type_of_a_client_follows_its_serde_or_annotation() -> None:
    with headrace.Broker() as broker:
        serde: Serde[Order] = OrderSerde()
        with headrace.Consumer(broker, serde=OrderSerde()) as consumer:
            assert_type(consumer, headrace.Consumer[Order])
        with headrace.Consumer(broker, serde=serde) as consumer:
            assert_type(consumer, headrace.Consumer[Order])
        with headrace.Consumer(broker, serde=OrderSerde) as by_class:
            assert_type(by_class, headrace.Consumer[Any])
        with headrace.Consumer(broker, serde=list[Order]) as of_lists:
            assert_type(of_lists, headrace.Consumer[list[Order]])
        with headrace.Consumer[Order | None](broker, serde=Order) as with_deletions:
            assert_type(with_deletions, headrace.Consumer[Order | None])
        with headrace.Consumer[Order](broker) as by_topic:
            assert_type(by_topic, headrace.Consumer[Order])
            assert isinstance(by_topic, headrace.Consumer)


def test_records_of_a_broker_are_typed_too(broker: headrace.Broker) -> None:
    found = broker.read("orders", 0, 0, serde=Order)
    assert_type(found, list[headrace.ConsumerRecord[Order]])
    assert [record.value.id for record in found] == [7]
    assert_type(broker.read("orders", 0, 0), list[headrace.ConsumerRecord[Any]])


def test_values_without_a_type_are_any() -> None:
    with headrace.Broker() as broker:
        with headrace.Consumer(broker) as consumer:
            assert_type(consumer, headrace.Consumer[Any])
        with headrace.Consumer(broker, serde="json") as consumer:
            assert_type(consumer, headrace.Consumer[Any])

        def takes_any(records: list[headrace.ConsumerRecord]) -> int:
            return len(records)

        with headrace.Consumer(broker, serde=Order) as of_orders:
            of_orders.assign([])
            records: list[headrace.ConsumerRecord[Order]] = []
            assert takes_any(records) == 0


def test_an_object_that_is_not_a_serde_is_an_error_for_type_checkers() -> None:
    with headrace.Broker() as broker:
        with pytest.raises(headrace.HeadraceError):
            headrace.Consumer(broker, serde=7)  # type: ignore[arg-type]  # the error is wanted
        with pytest.raises(headrace.HeadraceError):
            headrace.Producer(broker, key_serde=7)  # type: ignore[arg-type]  # the error is wanted


def test_the_records_of_a_worker_are_bytes() -> None:
    record = context(value=b"x").record
    assert_type(record.value, bytes | None)
    assert record.value == b"x"
