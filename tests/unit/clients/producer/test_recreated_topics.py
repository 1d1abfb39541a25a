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


def test_where_the_broker_creates_none_the_time_out_says_so() -> None:
    clock = headrace.ManualClock()  # the default time-out is two minutes
    with headrace.Broker(clock=clock, configs=NO_CREATION) as broker:
        broker.create_topic("t", 1)
        with headrace.Producer(broker) as producer:
            producer.send("t", b"1").result()
            broker.delete_topic("t")
            sent = producer.send("t", b"2")
            with pytest.raises(
                HeadraceError, match=r"UNKNOWN_TOPIC_OR_PARTITION.*create the topic"
            ):
                sent.result()


def test_a_record_for_a_partition_that_the_new_topic_has_not_is_told_so() -> None:
    clock = headrace.ManualClock()  # the default time-out is two minutes
    with headrace.Broker(clock=clock) as broker:
        broker.create_topic("t", 3)
        with headrace.Producer(broker) as producer:
            producer.send("t", b"1", partition=2).result()
            broker.delete_topic("t")
            sent = producer.send("t", b"2", partition=2)
            with pytest.raises(HeadraceError, match=r"t-2: the topic has 1 partitions by now"):
                sent.result()
