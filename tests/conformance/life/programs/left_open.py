"""A program that ends, or drops its clients, without closing them: left_open.py ADDRESS WHERE WHAT."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import warnings
from typing import Any

import headrace
from headrace.kinesis import Producer as KinesisProducer
from headrace.kinesis.blocking import Producer as BlockingKinesisProducer
from headrace.kinesis.client.settings import AwsSettings

ADDRESS, WHERE, WHAT = sys.argv[1:]
TOPIC = f"left-open-{os.getpid()}"
COUNT = 1000


def target() -> Any:
    if WHERE == "tcp":
        return ADDRESS
    if WHERE == "nobody":
        return "127.0.0.1:1"
    return headrace.Broker(data=WHERE)


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        gc.collect()
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def exit_with_records() -> None:
    """End with records in the buffer."""
    where = target()
    producer = headrace.Producer(where, linger_ms=60_000)
    with headrace.Admin(where) as admin:
        admin.create_topic(TOPIC, 1)
    for number in range(COUNT):
        producer.send(TOPIC, b"%d" % number)
    globals()["kept"] = producer, where
    print(TOPIC)


def exit_with_lost_records() -> None:
    """End with records in the buffer of a producer whose broker has gone."""
    producer = headrace.Producer(ADDRESS, linger_ms=60_000)
    with headrace.Admin(ADDRESS) as admin:
        admin.create_topic(TOPIC, 1)
    for number in range(COUNT):
        producer.send(TOPIC, b"%d" % number)
    globals()["kept"] = producer
    print("ready", flush=True)
    sys.stdin.readline()


def exit_of_asyncio() -> None:
    """End the event loop of a producer with records in its buffer."""

    async def main() -> None:
        producer = headrace.aio.Producer(ADDRESS, linger_ms=60_000)
        async with headrace.aio.Admin(ADDRESS) as admin:
            await admin.create_topic(TOPIC, 1)
        for number in range(COUNT):
            _ = await producer.send(TOPIC, b"%d" % number)
        globals()["kept"] = producer

    asyncio.run(main())


def exit_of_kinesis() -> None:
    """End with records that no Kinesis takes."""
    options: Any = {
        "region": "us-east-1",
        "endpoint_url": "http://127.0.0.1:1",
        "access_key_id": "x",
        "secret_access_key": "x",
    }
    if WHERE == "blocking":
        producer = BlockingKinesisProducer(AwsSettings(**options))
        for number in range(COUNT):
            producer.send("orders", b"%d" % number, partition_key="k")
        globals()["kept"] = producer
        return

    async def main() -> None:
        kinesis = KinesisProducer(AwsSettings(**options))
        for number in range(COUNT):
            _ = await kinesis.send("orders", b"%d" % number, partition_key="k")
        globals()["kept"] = kinesis

    asyncio.run(main())


def drop_producers() -> None:
    """Drop producers: their threads end, and their records are delivered."""
    where = target()
    with headrace.Admin(where) as admin:
        admin.create_topic(TOPIC, 1)
        before = threading.active_count()
        for number in range(30):
            headrace.Producer(where, linger_ms=60_000).send(TOPIC, b"%d" % number)
            gc.collect()
        until(lambda: threading.active_count() <= before + (WHERE != "tcp"), "threads end")
        until(lambda: sum(admin.truncate(TOPIC, {0: 0}).values()) == 0, "the topic is there")
    with headrace.Consumer(where, enable_auto_commit=False) as consumer:
        here = headrace.TopicPartition(TOPIC, 0)
        until(lambda: consumer.end_offsets([here])[here] == 30, "all records are delivered")
    if WHERE != "tcp":
        where.close()


def drop_consumers() -> None:
    """Drop a consumer: it leaves its group at once."""
    where = target()
    with headrace.Admin(where) as admin:
        admin.create_topic(TOPIC, 4)
        consumer: Any = headrace.Consumer(where, group=TOPIC)
        consumer.subscribe([TOPIC])
        assert len(consumer.assignment(20)) == 4
        del consumer
        gc.collect()
        until(lambda: not admin.describe_group(TOPIC).members, "the member leaves")
    if WHERE != "tcp":
        where.close()


def drop_asyncio() -> None:
    """Drop clients of asyncio: the loop closes them."""

    async def main() -> None:
        async with headrace.aio.Admin(ADDRESS) as admin:
            await admin.create_topic(TOPIC, 1)
            headrace.aio.Admin(ADDRESS)
            producer: Any = headrace.aio.Producer(ADDRESS, linger_ms=60_000)
            sent = await producer.send(TOPIC, b"x")
            del producer
            consumer: Any = headrace.aio.Consumer(ADDRESS, group=TOPIC)
            await consumer.subscribe([TOPIC])
            assert len(await consumer.assignment(20)) == 1
            del consumer
            gc.collect()
            async with asyncio.timeout(20):
                assert (await sent).offset == 0
                while (await admin.describe_group(TOPIC)).members:  # noqa: ASYNC110 - it is the broker's
                    await asyncio.sleep(0.02)

    asyncio.run(main())


def drop_brokers() -> None:
    """Drop a broker with a directory: it is closed, and the directory is free."""
    broker: Any = headrace.Broker(data=WHERE)
    broker.create_topic(TOPIC)
    broker.publish(TOPIC, b"x")
    del broker

    def is_free() -> bool:
        try:
            headrace.Broker(data=WHERE).close()
        except headrace.HeadraceError:
            return False
        return True

    until(is_free, "the directory is free")
    until(lambda: threading.active_count() == 1, "threads end")


if __name__ == "__main__":
    warnings.simplefilter("always", ResourceWarning)
    globals()[WHAT]()
    print("end", flush=True)
