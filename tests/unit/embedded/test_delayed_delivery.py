"""Scheduled records by the arguments of Headrace's clients, on a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace import aio
from headrace.errors import ConfigError, InvalidRecordError

MINUTE_MS = 60_000


@pytest.fixture
def clock() -> headrace.ManualClock:
    return headrace.ManualClock()


@pytest.fixture
def broker(clock: headrace.ManualClock) -> Iterator[headrace.Broker]:
    with headrace.Broker(clock=clock) as broker:
        broker.create_topic("later", configs={"headrace.delay.enable": "true"})
        yield broker


def read(broker: headrace.Broker, count: int) -> list[tuple[bytes, int]]:
    """Return values and times as a consumer gets them, which waits until they are due."""
    found: list[tuple[bytes, int]] = []
    with headrace.Consumer(broker, auto_offset_reset="earliest") as consumer:
        consumer.assign([headrace.TopicPartition("later", 0)])
        while len(found) < count:
            found += ((each.value, broker.now_ms()) for each in consumer.poll(60))
    return found


def test_a_consumer_waits_for_scheduled_records(
    broker: headrace.Broker, clock: headrace.ManualClock
) -> None:
    start_ms = clock.now_ms()
    with headrace.Producer(broker) as producer:
        producer.send("later", b"b", deliver_at_ms=start_ms + MINUTE_MS)
        producer.send("later", b"a", delay_ms=5000)
        producer.send_many("later", [b"c", b"d"], delay_ms=2 * MINUTE_MS)
        producer.flush()
    broker.publish("later", b"x", delay_ms=10)
    came = read(broker, 5)
    assert [value for value, _ in came] == [b"x", b"a", b"b", b"c", b"d"]
    for (_, now_ms), delay_ms in zip(
        came, (10, 5000, MINUTE_MS, 2 * MINUTE_MS, 2 * MINUTE_MS), strict=True
    ):
        assert delay_ms <= now_ms - start_ms < delay_ms + 1000


def test_an_asyncio_consumer_waits_for_scheduled_records(
    broker: headrace.Broker, clock: headrace.ManualClock
) -> None:
    start_ms = clock.now_ms()

    async def produce() -> None:
        async with aio.Producer(broker) as producer:
            sent = await producer.send("later", b"b", deliver_at_ms=start_ms + 60_000)
            await producer.send_many("later", [b"a"], delay_ms=1000)
            await sent

    asyncio.run(produce())
    assert [value for value, _ in read(broker, 2)] == [b"a", b"b"]
    assert clock.now_ms() >= start_ms + 60_000


@pytest.mark.parametrize(
    "times", [{"delay_ms": -1}, {"deliver_at_ms": 10**15}, {"delay_ms": 1, "deliver_at_ms": 1}]
)
def test_the_client_refuses_invalid_delivery_times(
    broker: headrace.Broker, times: dict[str, Any]
) -> None:
    with headrace.Producer(broker) as producer, pytest.raises(ConfigError):
        producer.send("later", b"a", **times)


def test_the_broker_refuses_delivery_times_beyond_the_limit_of_the_topic(
    broker: headrace.Broker,
) -> None:
    with (
        headrace.Producer(broker) as producer,
        pytest.raises(InvalidRecordError, match=r"headrace\.delay\.max\.ms"),
    ):
        producer.send("later", b"a", delay_ms=367 * 24 * 60 * MINUTE_MS).result()
