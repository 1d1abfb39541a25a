"""Clients in the process of a broker learn at once that a topic has more partitions."""

from __future__ import annotations

import asyncio

from headrace.clients.consumer.aio import Consumer as AioConsumer
from headrace.clients.consumer.blocking import Consumer
from headrace.embedded.broker import Broker
from headrace.embedded.clock import ManualClock
from headrace.types import TopicPartition

SOON_MS = 20_000
"""Metadata is looked at again by itself after five minutes."""


def test_a_group_divides_added_partitions() -> None:
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t", partitions=1)
        with Consumer(broker, group="g", auto_offset_reset="earliest") as one:
            one.subscribe(["t"])
            broker.publish("t", b"first")
            assert [record.value for record in one.poll(5)] == [b"first"]
            began_ms = broker.now_ms()
            broker.add_partitions("t", 3)
            while len(one.assignment()) < 3:
                one.poll(1)
                assert broker.now_ms() - began_ms < SOON_MS
            broker.publish("t", b"new", partition=2)
            assert [record.value for record in one.poll(5)] == [b"new"]


def test_a_waiting_asyncio_member_gets_the_records_of_an_added_partition() -> None:
    async def program(broker: Broker) -> None:
        async with AioConsumer(broker, group="g", auto_offset_reset="earliest") as one:
            await one.subscribe(["t"])
            await one.poll(0.1)
            waiting = asyncio.ensure_future(one.poll(20))
            await asyncio.sleep(0)
            await asyncio.to_thread(broker.add_partitions, "t", 2)
            await asyncio.to_thread(broker.publish, "t", b"v", partition=1)
            [record] = await waiting
            assert TopicPartition(*record[:2]) == TopicPartition("t", 1)
            assert record.value == b"v"

    with Broker(configs={"group.consumer.heartbeat.interval.ms": "200"}) as broker:
        broker.create_topic("t", partitions=1)
        asyncio.run(program(broker))
